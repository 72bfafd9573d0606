//! Instructions per ACK: the program that `scripts/bench-instructions.sh` runs under callgrind.
//!
//! `instructions ALGORITHM CASE COUNT` feeds COUNT ACKs of one case to [`measured`], the only function that callgrind
//! counts. Setting up the state of the case happens outside of it. `instructions list` prints all pairs; without
//! arguments each pair runs once.

use std::hint::black_box;
use std::sync::Arc;

use weft_cc::dctcp::{Dctcp, DctcpConfig, DctcpShared};
use weft_cc::median::{Median, MedianConfig};
use weft_cc::nscc::{Nscc, NsccConfig, NsccShared};
use weft_cc::smartt::{Smartt, SmarttConfig, SmarttShared};
use weft_cc::swift::{LswiftConfig, Swift, SwiftConfig, SwiftShared, Variant};
use weft_cc::{
    AckSample, CcParams, Delays, NackCause, NackSample, Rate, SenderAlgorithm, SenderCc, Span, Time,
};

const PARAMS: CcParams = CcParams {
    mtu: 4096,
    overhead: 64,
    link_rate: Rate::from_gbps(400),
    network_rtt: Span::from_us(12),
    trimming: true,
    delays: Delays::Known,
};
const MTU: u64 = 4_160;
/// Transmission time of one packet at 400 Gbit/s.
const PACKET_TIME: Span = Span::from_ps(83_200);

/// A state of the algorithm and the ACKs that arrive in it.
struct Case {
    name: &'static str,
    rtt: Span,
    ecn: bool,
    /// Time between two ACKs.
    gap: Span,
    before: Before,
}

/// Event before each ACK, not counted.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    /// A packet is trimmed, so that the ACK ends a period of quick adapt with a trigger set.
    Trim,
    /// All packets were trimmed once, and more bytes are in flight than will ever be acknowledged.
    IgnorePhase,
}

const CASES: [Case; 8] = [
    Case {
        name: "proportional-increase",
        rtt: Span::from_us(15),
        ecn: false,
        gap: PACKET_TIME,
        before: Before::Nothing,
    },
    Case {
        name: "fair-increase",
        rtt: Span::from_us(24),
        ecn: false,
        gap: PACKET_TIME,
        before: Before::Nothing,
    },
    Case {
        name: "path-change",
        rtt: Span::from_us(15),
        ecn: true,
        gap: PACKET_TIME,
        before: Before::Nothing,
    },
    Case {
        name: "marked-above-target",
        rtt: Span::from_us(24),
        ecn: true,
        gap: PACKET_TIME,
        before: Before::Nothing,
    },
    Case {
        name: "every-ack-decreases",
        rtt: Span::from_us(24),
        ecn: true,
        gap: Span::from_us(13),
        before: Before::Nothing,
    },
    Case {
        name: "fast-increase",
        rtt: Span::from_us(12),
        ecn: false,
        gap: PACKET_TIME,
        before: Before::Nothing,
    },
    Case {
        name: "quick-adapt",
        rtt: Span::from_us(24),
        ecn: false,
        gap: Span::from_us(30),
        before: Before::Trim,
    },
    Case {
        name: "ignored",
        rtt: Span::from_us(24),
        ecn: true,
        gap: PACKET_TIME,
        before: Before::IgnorePhase,
    },
];

/// The fast path, in a function of its own so that callgrind can count it separately.
#[inline(never)]
fn measured<C: SenderCc>(cc: &mut C, now: Time, ack: &AckSample) {
    cc.on_ack(now, ack);
}

fn ack(case: &Case, in_flight: u64) -> AckSample {
    AckSample {
        newly_received: MTU as u32,
        trigger_bytes: MTU as u32,
        rtt: Some(case.rtt),
        ecn: case.ecn,
        in_flight,
        out_of_order: 0,
        hosts: None,
    }
}

fn trim<C: SenderCc>(cc: &mut C, now: Time) {
    let nack = NackSample { bytes: MTU, cause: NackCause::Trimmed, ecn: true, rtt: None, in_flight: 0 };
    cc.on_nack(now, &nack);
}

/// Brings the algorithm into the state that the case starts from: averages settled, timers running.
fn settle<C: SenderCc>(cc: &mut C, case: &Case) -> Time {
    let mut now = Time::ZERO;
    for _ in 0..10_000 {
        now += PACKET_TIME;
        cc.on_ack(now, &ack(case, 100_000));
    }
    if case.before == Before::IgnorePhase {
        trim(cc, now);
        // The first round ends a period with many bytes; the second one ends a period with few bytes, and adapts.
        for _ in 0..2 {
            now += Span::from_us(40);
            cc.on_ack(now, &AckSample { newly_received: 0, ..ack(case, u64::MAX) });
            trim(cc, now);
        }
    }
    now
}

fn run<C: SenderCc>(mut cc: C, case: &Case, count: u64) {
    let mut now = settle(&mut cc, case);
    // Few enough bytes in flight for the next trim to end the ignore phase.
    let ack = black_box(ack(case, MTU / 2));
    for _ in 0..count {
        now += case.gap;
        if case.before == Before::Trim {
            // Early in the period, so that the ACK ends it.
            trim(&mut cc, now - case.gap + Span::from_us(1));
        }
        measured(&mut cc, black_box(now), &ack);
    }
    if case.before != Before::Nothing {
        assert_eq!(cc.snapshot().phase, "ignore", "the last ACK was not of this case");
    }
    black_box(cc.window());
}

fn run_named(algorithm: &str, case: &Case, count: u64) {
    match algorithm {
        "nscc" => {
            run(Nscc::new(Arc::new(NsccShared::new(&NsccConfig::default(), &PARAMS, false))), case, count);
        }
        "smartt" => {
            run(Smartt::new(Arc::new(SmarttShared::new(&SmarttConfig::default(), &PARAMS))), case, count);
        }
        "dctcp" => run(Dctcp::new(Arc::new(DctcpShared::new(&DctcpConfig::default(), &PARAMS))), case, count),
        "swift" => {
            let shared = SwiftConfig::default().shared(&PARAMS, Variant::Swift);
            run(Swift::new(Arc::new(shared)), case, count);
        }
        "lswift" => run(lswift(), case, count),
        "mswift" => {
            let inner = SenderAlgorithm::Swift(Box::new(lswift()));
            run(Median::new(inner, Arc::new(MedianConfig::default()), MTU), case, count);
        }
        other => panic!("no algorithm {other}: nscc, smartt, dctcp, swift, lswift or mswift"),
    }
}

fn lswift() -> Swift {
    Swift::new(Arc::new(LswiftConfig::default().shared(&PARAMS, Variant::Lswift)))
}

fn main() {
    // `cargo bench` and `cargo test` add flags of their own.
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let pairs = ["nscc", "smartt"].into_iter().flat_map(|a| CASES.iter().map(move |c| (a, c)));
    // DCTCP knows no phase of ignoring, and no delay: two of the cases are all that it tells apart.
    let of_dctcp = CASES.iter().filter(|case| ["fair-increase", "marked-above-target"].contains(&case.name));
    let pairs = pairs.chain(of_dctcp.map(|case| ("dctcp", case)));
    // Swift knows no marks: below its target, above it, and above it where each ACK decreases.
    let of_swift = ["fast-increase", "fair-increase", "every-ack-decreases"];
    let of_swift = CASES.iter().filter(move |case| of_swift.contains(&case.name));
    let of_swift =
        ["swift", "lswift", "mswift"].into_iter().flat_map(|a| of_swift.clone().map(move |c| (a, c)));
    let pairs = pairs.chain(of_swift);
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => pairs.for_each(|(algorithm, case)| println!("{algorithm} {}", case.name)),
        ["sizes"] => {
            println!("nscc {} shared {}", size_of::<Nscc>(), size_of::<NsccShared>());
            println!("dctcp {} shared {}", size_of::<Dctcp>(), size_of::<DctcpShared>());
            println!("smartt {} shared {}", size_of::<Smartt>(), size_of::<SmarttShared>());
            println!("swift {} shared {}", size_of::<Swift>(), size_of::<SwiftShared>());
            println!("mswift {} in front of those of swift, and its histories", size_of::<Median>());
        }
        [algorithm, case, count] => {
            let case = CASES.iter().find(|c| c.name == case).expect("a case from `list`");
            run_named(algorithm, case, count.parse().expect("COUNT is a number"));
        }
        _ => pairs.for_each(|(algorithm, case)| run_named(algorithm, case, 1)),
    }
}
