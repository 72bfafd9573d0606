use super::*;
use crate::port::memory::{MemoryConfig, MemoryPort, pair};

/// Sends `count` numbered frames through these faults. Returns what arrives.
fn run(faults: Faults, count: u32, seed: u64) -> (Vec<Vec<u8>>, FaultCounts) {
    let (mut a, b) = pair(&MemoryConfig { mtu: 100, ..MemoryConfig::default() }).unwrap();
    let pools = [a.pool(), b.pool()];
    let mut b = FaultyPort::new(b, faults, Rng::new(seed, 0)).unwrap();
    let mut arrived = Vec::new();
    for first in (0..count).step_by(BURST) {
        send(&mut a, first..count.min(first + BURST as u32));
        collect(&mut b, &mut arrived);
    }
    for _ in 0..=faults.delay_frames + 1 {
        collect(&mut b, &mut arrived);
    }
    assert_eq!(b.counters().rx_frames, arrived.len() as u64);
    let counts = b.fault_counts();
    drop((a, b));
    assert!(pools.iter().all(|pool| pool.available() == pool.capacity()), "no buffer is lost");
    (arrived, counts)
}

fn send(port: &mut MemoryPort, numbers: std::ops::Range<u32>) {
    let mut tx = TxBurst::new(port);
    for n in numbers {
        let mut frame = tx.reserve(20).unwrap();
        frame.fill(0);
        frame[16..].copy_from_slice(&n.to_be_bytes());
        frame.commit();
    }
    port.transmit(&mut tx);
    assert!(tx.is_empty());
}

fn collect(port: &mut FaultyPort<MemoryPort>, into: &mut Vec<Vec<u8>>) {
    let mut rx = RxBurst::new();
    port.receive(&mut rx);
    into.extend(rx.drain().map(|frame| frame.to_vec()));
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|frame| u32::from_be_bytes(frame[16..].try_into().unwrap())).collect()
}

#[test]
fn without_faults_nothing_changes() {
    let (frames, counts) = run(Faults::default(), 100, 1);
    assert_eq!(numbers(&frames), (0..100).collect::<Vec<_>>());
    assert_eq!(counts, FaultCounts::default());
}

#[test]
fn drops_are_as_frequent_as_asked() {
    let (frames, counts) = run(Faults { drop: 0.2, ..Faults::default() }, 10_000, 1);
    assert_eq!(counts.dropped + frames.len() as u64, 10_000);
    // Mean 2000, standard deviation 40.
    assert!((1800..2200).contains(&counts.dropped), "{counts:?}");
    assert!(numbers(&frames).is_sorted());
}

#[test]
fn duplicates_follow_their_original() {
    let (frames, _) = run(Faults { duplicate: 1.0, ..Faults::default() }, 50, 1);
    assert_eq!(numbers(&frames), (0..50).flat_map(|n| [n, n]).collect::<Vec<_>>());
}

#[test]
fn a_reordered_frame_follows_the_next() {
    let (frames, counts) = run(Faults { reorder: 0.3, ..Faults::default() }, 1000, 1);
    let seen = numbers(&frames);
    assert_ne!(seen, (0..1000).collect::<Vec<_>>());
    for (place, n) in seen.iter().enumerate() {
        assert!((place as i64 - i64::from(*n)).abs() <= 1, "{n} arrived in place {place}");
    }
    assert!(counts.reordered > 200);
}

#[test]
fn a_delayed_frame_lets_as_many_pass_as_asked() {
    let (a, b) = pair(&MemoryConfig::default()).unwrap();
    let mut a = a;
    let mut b = FaultyPort::new(b, Faults::default(), Rng::new(1, 0)).unwrap();
    let mut arrived = Vec::new();
    b.set_faults(Faults { delay: 1.0, delay_frames: 3, ..Faults::default() }).unwrap();
    send(&mut a, 0..1);
    collect(&mut b, &mut arrived);
    assert!(arrived.is_empty());
    b.set_faults(Faults::default()).unwrap();
    send(&mut a, 1..6);
    collect(&mut b, &mut arrived);
    assert_eq!(numbers(&arrived), [1, 2, 3, 0, 4, 5]);
}

#[test]
fn the_last_delayed_frame_arrives_as_well() {
    let (frames, counts) = run(Faults { delay: 1.0, delay_frames: 7, ..Faults::default() }, 40, 1);
    assert_eq!((frames.len(), counts.delayed), (40, 40));
}

#[test]
fn corruption_flips_one_bit() {
    let (frames, counts) = run(Faults { corrupt: 1.0, ..Faults::default() }, 200, 1);
    assert_eq!(counts.corrupted, 200);
    for (n, frame) in frames.iter().enumerate() {
        let mut expected = vec![0; 20];
        expected[16..].copy_from_slice(&(n as u32).to_be_bytes());
        let flipped: u32 = frame.iter().zip(&expected).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(flipped, 1);
    }
}

#[test]
fn the_seed_decides() {
    let faults =
        Faults { drop: 0.1, corrupt: 0.1, duplicate: 0.1, reorder: 0.1, delay: 0.1, delay_frames: 40 };
    assert_eq!(run(faults, 2000, 5), run(faults, 2000, 5));
    assert_ne!(run(faults, 2000, 5), run(faults, 2000, 6));
}

#[test]
fn numbers_that_are_no_probabilities_are_refused() {
    for value in [-0.1, 1.1, f64::NAN] {
        let (a, _b) = pair(&MemoryConfig::default()).unwrap();
        let error =
            FaultyPort::new(a, Faults { reorder: value, ..Faults::default() }, Rng::new(1, 0)).unwrap_err();
        assert_eq!(error.name, "reorder");
    }
}
