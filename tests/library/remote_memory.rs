//! Memory that an endpoint's peers read, write and count in, over the kernel's UDP.

use std::time::{Duration, Instant};

use weft::core::wire::ses::ReturnCode;
use weft::{Atomic, AtomicOp, AtomicType, Completion, Endpoint, Error, ReadFault, RemoteMemory, Rights};

/// Polls both endpoints until the first has a completion that is no news of a connection.
fn ended(a: &mut Endpoint, b: &mut Endpoint, announced: &mut Vec<(u64, u32)>) -> Completion {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(20), "nothing ends");
        if let Some(Completion::Written(written)) = b.poll().unwrap() {
            announced.push((written.data, written.len));
        }
        match a.poll().unwrap() {
            None | Some(Completion::Connected { .. }) => {}
            Some(other) => return other,
        }
    }
}

#[test]
fn memory_is_read_written_and_counted_in() {
    let mut a = Endpoint::builder("udp:127.0.0.1,shared=on").build().unwrap();
    let mut b = Endpoint::builder("udp:127.0.0.1,shared=on").build().unwrap();
    let key = b.draw_key().unwrap();
    b.expose(key, vec![0; 200_000], Rights::ALL, None).unwrap();
    let weft::port::AnyPort::Udp(port) = b.worker().unwrap().port() else { panic!("a port of UDP") };
    let address = port.local();
    let peer = a.peer(address).unwrap();
    let connection = a.connect(peer).unwrap();
    let mut announced = Vec::new();

    let bytes: Vec<u8> = (0..150_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let to = RemoteMemory { key, offset: 8 };
    a.write(connection, bytes.clone(), to, Some(42), 1).unwrap();
    let Completion::Wrote { context: 1, result: Ok(()), .. } = ended(&mut a, &mut b, &mut announced) else {
        panic!()
    };
    assert_eq!(announced, [(42, 150_000)]);

    let add = Atomic {
        op: AtomicOp::SUM,
        datatype: AtomicType::UINT64,
        operands: 5u64.to_le_bytes().to_vec(),
        compare: None,
        fetch: true,
        key,
        offset: 0,
        context: 2,
    };
    for n in 0..3u64 {
        a.atomic(connection, add.clone()).unwrap();
        let Completion::Atomic { context: 2, fetched, result: Ok(()), .. } =
            ended(&mut a, &mut b, &mut announced)
        else {
            panic!()
        };
        assert_eq!(fetched, (5 * n).to_le_bytes());
    }

    a.read(connection, vec![0; 150_008], RemoteMemory { key, offset: 0 }, 3).unwrap();
    let Completion::Read { context: 3, buffer, result: Ok(()), .. } = ended(&mut a, &mut b, &mut announced)
    else {
        panic!()
    };
    let read = buffer.as_slice().unwrap();
    assert!(read[..8] == 15u64.to_le_bytes() && read[8..] == bytes);

    let outside = RemoteMemory { key, offset: 199_999 };
    a.write(connection, vec![1; 2], outside, None, 4).unwrap();
    let Completion::Wrote { result: Err(error), .. } = ended(&mut a, &mut b, &mut announced) else {
        panic!()
    };
    assert_eq!(error, Error::Access(ReadFault::Answered(ReturnCode::AT_OUT_OF_RANGE)));

    let memory = b.withdraw(key).unwrap();
    assert!(memory.as_slice().unwrap()[150_008..].iter().all(|byte| *byte == 0) && b.withdraw(key).is_none());
    a.read(connection, vec![0; 8], RemoteMemory { key, offset: 0 }, 5).unwrap();
    let Completion::Read { result: Err(error), .. } = ended(&mut a, &mut b, &mut announced) else { panic!() };
    assert_eq!(error, Error::Access(ReadFault::Answered(ReturnCode::BAD_MKEY)));
}

#[test]
fn a_worker_elsewhere_says_that_it_has_no_remote_memory() {
    let mut endpoint = Endpoint::builder("udp:127.0.0.1,shared=on").on_thread(None).build().unwrap();
    assert_eq!(endpoint.draw_key(), Err(Error::WorkerElsewhere));
    let refused = endpoint.expose(1, vec![0; 8], Rights::ALL, None).unwrap_err();
    assert_eq!((refused.error, refused.buffer.len()), (Error::WorkerElsewhere, 8));
}
