//! A regression corpus of scripted packets, after packetdrill (Cardwell et al., USENIX ATC 2013): text files that say which
//! packets arrive at an endpoint, which it sends, and what its application learns, and when. README.md describes the
//! language; docs/transitions.md says which script covers which transition.
//!
//! Packets are written and read by the codec of the conforming peer, so scripts test the wire against the published layout.

mod calls;
mod fields;
#[path = "../../../tests/conforming/frame.rs"]
#[allow(dead_code, reason = "scripts use a part of it")]
mod frame;
mod packet;
#[allow(dead_code, reason = "scripts use a part of it")]
mod peer;
mod run;
mod script;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};

use script::{Fault, Script};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

/// The names of all scripts, such as `target/close`, in order.
fn scripts() -> Vec<String> {
    let mut names = Vec::new();
    for directory in ["initiator", "target", "attacks"] {
        for entry in fs::read_dir(here().join(directory)).expect("the directory of scripts") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name in UTF-8");
            assert!(path.extension().is_some_and(|end| end == "pkt"), "{} is no script", path.display());
            names.push(format!("{directory}/{name}"));
        }
    }
    names.sort();
    names
}

fn run_text(text: &str) -> Result<(), Fault> {
    run::run(&Script::parse(text)?)
}

#[test]
fn every_script_holds() {
    let mut faults = Vec::new();
    for name in scripts() {
        let text = fs::read_to_string(here().join(format!("{name}.pkt"))).expect("a script in UTF-8");
        faults.extend(run_text(&text).err().map(|fault| format!("{name}.pkt:{fault}")));
    }
    assert!(faults.is_empty(), "{} scripts do not hold:\n{}", faults.len(), faults.join("\n"));
}

/// docs/transitions.md: tables whose last column names the scripts of each transition.
#[test]
fn every_transition_has_a_script_and_every_script_a_transition() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/transitions.md");
    let text = fs::read_to_string(document).expect("the document");
    let scripts = scripts();
    let mut named = Vec::new();
    for (number, row) in (1..).zip(text.lines()).filter(|(_, line)| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let last = cells.last().copied().unwrap_or_default();
        if last == "script" {
            continue;
        }
        assert_eq!(cells.len(), 4, "docs/transitions.md:{number}: state, event, what follows, script");
        assert!(!last.is_empty(), "docs/transitions.md:{number}: no script");
        for name in last.split(", ").map(|name| name.trim_matches('`')) {
            assert!(
                scripts.iter().any(|script| script == name),
                "docs/transitions.md:{number}: no script {name}"
            );
            named.push(name);
        }
    }
    let forgotten: Vec<&String> = scripts.iter().filter(|script| !named.contains(&script.as_str())).collect();
    assert!(forgotten.is_empty(), "docs/transitions.md names no transition of {forgotten:?}");
}

/// The fault of a script whose first line is a comment, and whose others are these.
fn fault_of(lines: &str) -> Fault {
    match run_text(&format!("# A test.\n{lines}\n")) {
        Ok(()) => panic!("this script should not hold:\n{lines}"),
        Err(fault) => fault,
    }
}

#[test]
fn a_script_that_makes_no_sense_is_refused_with_its_line_and_word() {
    let cases = [
        ("0 conect c", "\"conect\" is none of <, >, silence, connect"),
        ("0 > RUD_RQ", "\"RUD_RQ\" is no type of packets; there are RUD_REQ"),
        ("0 < RUD_REQ psn=1 cack=5", "\"cack=5\": RUD_REQ has no field \"cack\""),
        ("0 < RUD_REQ psn=1 SNY", "\"SNY\": RUD_REQ has no field \"SNY\""),
        ("0 < RUD_REQ psn=1 SYN=1", "\"SYN=1\": SYN is a flag: SYN or !SYN"),
        ("0 < RUD_REQ psn=1 len", "\"len\" lacks a value"),
        ("0 < RUD_REQ psn=1 psn=2", "\"psn\" is there twice"),
        ("0 < RUD_REQ psn=x", "\"psn=x\": \"x\" is no number and no variable"),
        ("0 < RUD_REQ psn=4294967296", "\"psn=4294967296\": psn has 32 bits"),
        ("0 < RUD_REQ psn=1 spdcid=0x10000", "spdcid has 16 bits"),
        ("0 < RUD_REQ psn=$s", "$s has no value yet"),
        ("0 > RUD_REQ psn=$s+1", "$s has no value yet"),
        ("0 > RUD_REQ from=2", "from is for packets that arrive"),
        ("0 < RUD_REQ psn=1 to=2", "to is for packets that leave"),
        ("0 < NACK psn=1 code=TRIMED", "\"TRIMED\" is no number and none of TRIMMED"),
        ("0 < NACK psn=1", "NACK needs code="),
        ("0 < RUD_REQ", "RUD_REQ needs psn="),
        ("0 > DATAGRAM", "DATAGRAM is for packets that arrive"),
        ("0 < DATAGRAM bytes=123", "3 hexadecimal digits, an odd number"),
        ("0 < DATAGRAM bytes=1g", "'g' is no hexadecimal digit"),
        ("0 < RUD_REQ psn=1..3 msg=1..2", "the range of msg has 2 values, others have 3"),
        ("0 < ACK_CC cack=1 sack=100", "sack= names PSN 100, which is not among the 64"),
        ("0 close c", "\"c\" is not the name of a connection"),
        ("0 connect c\nclose c\nconnect c", "the name \"c\" is taken"),
        ("0 connect c\nsend c m ten", "\"ten\" is no number"),
        ("0 connect c\nsend c", "\"send\" lacks a name for it"),
        ("0 connect c\natomic c a ADD", "\"ADD\" is none of MIN, MAX, SUM"),
        ("0 receive r 9\ndone r data=u64:x", "\"u64:x\" is no number, such as u64:5"),
        ("0 connect c\nsend c m 1 tga=1", "\"tga=1\": the options of send are tag"),
        ("0 connect c\nclose c now", "\"now\": close has no options"),
        ("0 close_process 4 \"oops", "no end of \"oops"),
        ("10us silence\n5us silence", "5 µs is before the line above, which is at 10 µs"),
        ("10xs silence", "\"10xs\" is no time"),
        ("10us", "nothing happens at this time"),
        ("set rto=fast", "\"fast\" is no time"),
        ("set speed=1", "there is no setting \"speed\""),
        ("set max_retries=256", "\"256\" is not 0 to 255"),
        ("set mp_range=100", "mp_range is a multiple of 128"),
        ("0 silence\nset rto=1ms", "\"set\" stands before everything"),
        ("# Nothing.", "nothing happens in this script"),
    ];
    for (lines, expected) in cases {
        let fault = fault_of(lines);
        assert!(fault.text.contains(expected), "{lines:?}: {fault} instead of {expected}");
        assert_eq!(fault.line, 1 + lines.lines().count(), "{lines:?}: {fault}");
    }
    let fault = Script::parse("0 silence").err().expect("no comment");
    assert!(fault.text.contains("a script begins with a comment"), "{fault}");
}

/// Every kind of disagreement is found, and told with both sides.
#[test]
fn a_script_that_does_not_hold_is_reported_in_words() {
    let send = "0 connect c\nsend c m 10\n";
    let receive = "0 receive r 10\n< RUD_REQ psn=5 psn_offset=0 len=10\n> ACK_CC cack=5\n";
    let cases = [
        (send, "> RUD_REQ !SYN", "SYN instead of !SYN"),
        (send, "> RUD_REQ len=11", "len=10 instead of len=11"),
        (send, "> RUD_REQ data=other", "data differs from byte 0 on"),
        (send, "> RUD_REQ psn=7", " instead of psn=7"),
        (send, "> RUD_REQ dpdcid=1", "there is no dpdcid"),
        (send, "> ROD_REQ", "it is a RUD_REQ, not a ROD_REQ"),
        (send, "10us silence", "no line expects the packet that left at 0 ps:\n    RUD_REQ"),
        (send, "", "no line expects the packet that left at 0 ps"),
        (send, "> RUD_REQ\n> RUD_REQ", "but nothing left\n    the endpoint waits: "),
        (send, "> RUD_REQ\n10us done m", "m should be done at 10 µs, and is not"),
        (send, "> RUD_REQ psn=$s\n90us > RUD_REQ RETX", "but nothing left"),
        (send, "> RUD_REQ psn=$s\n102us > RUD_REQ RETX", "no line expects the packet that left at 100 µs"),
        (send, "> RUD_REQ psn=$s\n< ACK cack=$s\ndone m \"cancelled\"", "it should fail with \"cancelled\""),
        (send, "> RUD_REQ psn=$s\n< ACK cack=$s\ndone c", "c should be done, but this is:\n    done m"),
        (send, "> RUD_REQ psn=$s\n< ACK cack=$s", "no line expects this completion at 0 ps:\n    done m"),
        (send, "close c \"too late\"", "the call should be refused with \"too late\", and is not"),
        (receive, "done r", "the line should say the content of r"),
        (receive, "done r data=other", "the content differs from that of other at byte 0"),
        (receive, "done r data=0 from=2", "from should be 2:\n    done r len=10 header_data=0 from=1"),
        (receive, "done r data=0\ncheck pdcs=2", "pdcs is 1 instead of 2"),
        (receive, "done r data=0\ncheck leaks=0", "0 kinds of things should be left"),
        (receive, "done r more data=0", "more should be 1"),
        (
            "0 receive r 30 many=1\n< RUD_REQ psn=5 psn_offset=0 len=10\n> ACK_CC\n",
            "done r data=0",
            "more should be 0",
        ),
        ("0 expose u64:5 8\n", "withdraw data=u64:6", "the memory differs from u64:6 at byte 0"),
        ("0 expose u64:5 8\n", "accessed reads=1", "nothing has been accessed"),
        ("0 expose u64:5 8\n", "written", "no write should be announced, or another one"),
    ];
    for (begin, end, expected) in cases {
        let fault = fault_of(&format!("{begin}{end}"));
        assert!(fault.text.contains(expected), "{end:?}: {fault}\ninstead of {expected}");
    }
}

/// The headers of X2's generator (the peer's own test has its bytes), in the words of scripts, and their bytes.
#[test]
fn packets_are_written_at_the_published_offsets() {
    let cases = [
        (
            "RUD_REQ RETX psn=0x98765432 clear=0x98766666 spdcid=0x3456 dpdcid=0x9abc next=standard",
            "119012349876543234569abc",
        ),
        (
            "RUD_REQ SYN RETX psn=0x98765432 clear=0x98766666 spdcid=0x3456 psn_offset=0x876",
            "119412349876543234560876",
        ),
        (
            "RUD_CC_REQ RETX psn=0x98765432 clear=0x98766666 spdcid=0x3456 dpdcid=0x9abc ccc_id=0x77 credit_target=0x887766",
            "699012349876543234569abc77887766",
        ),
        (
            "ROD_REQ RETX psn=0x98765432 clear=0x98766666 spdcid=0x3456 dpdcid=0x9abc",
            "199012349876543234569abc",
        ),
        (
            "ACK_CC next=response M RETX req=CLEAR cack=0x2468ace0 acks=0x2468ce01 spdcid=0x3456 dpdcid=0x789a mpr=17280 sack_base=0x24691469 sack=0x2469146d service=0x99aa restore=1 penalty=0x7f rcvd=0x887766 ooo=0x8765",
            "423221212468ace03456789a008767890000000000000010 99aaff8877668765",
        ),
        (
            "ACK_CC next=response M RETX req=CLEAR cack=0x2468ace0 acks=0x2468ce01 spdcid=0x3456 dpdcid=0x789a mpr=17280 sack_base=0x24691469 credit=0x123456 ooo=0x8765",
            "423221212468ace03456789a108767890000000000000000 1234560000008765",
        ),
        (
            "NACK M RETX NT code=0x16 vendor=0x87 psn=0x99887766 spdcid=0x3456 dpdcid=0x789a payload=0x56789abc",
            "5038168799887766 3456789a56789abc",
        ),
        (
            "CLOSE_CMD ISROD RETX AR psn=0x99887766 probe=0x1234 spdcid=0x3456 dpdcid=0x789a payload=0x56789abc",
            "5a38123499887766 3456789a56789abc",
        ),
    ];
    for (words, expected) in cases {
        let script = Script::parse(&format!("# A test.\n0 < {words}")).expect(words);
        let script::Action::Arrive(packets) = &script.lines[0].action else { unreachable!("it is a packet") };
        let bytes = run::write(packets).expect(words);
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = expected.replace(' ', "");
        assert_eq!(digits[..expected.len()], expected, "{words}");
    }
}
