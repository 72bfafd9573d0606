//! The format of traces: one JSON object a line. docs/trace.md describes the fields.

use core::fmt::{self, Write};

use super::{Event, Record};
use crate::packet::Addr;
use crate::wire::pds::{ControlKind, NackCode, PdcId, Psn};
use weft_cc::Span;

/// Appends `record` as one line, with its newline.
pub fn write_record(out: &mut String, record: &Record) {
    let Record { at, host, event } = record;
    let mut line = Line::new(out);
    line.number("time_ps", at.as_ps());
    line.number("host", *host);
    line.text("event", event.name());
    line.fields(event);
    line.end();
}

/// Appends the line that says that `count` records are missing here, because they came faster than they could be
/// written.
pub fn write_lost(out: &mut String, count: u64) {
    let mut line = Line::new(out);
    line.text("event", "lost_records");
    line.number("count", count);
    line.end();
}

/// An object that is being written.
struct Line<'a> {
    out: &'a mut String,
    separator: char,
}

impl<'a> Line<'a> {
    fn new(out: &'a mut String) -> Line<'a> {
        Line { out, separator: '{' }
    }

    fn end(self) {
        self.out.push_str("}\n");
    }

    fn field(&mut self, name: &str, value: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = write!(self.out, "{}\"{name}\":{value}", self.separator);
        self.separator = ',';
    }

    fn number(&mut self, name: &str, value: impl Into<u64>) {
        self.field(name, format_args!("{}", value.into()));
    }

    fn flag(&mut self, name: &str, value: bool) {
        self.field(name, format_args!("{value}"));
    }

    fn text(&mut self, name: &str, value: &str) {
        self.field(name, format_args!("{}", Quoted(value)));
    }

    fn peer(&mut self, peer: Addr) {
        self.number("peer", peer.0);
    }

    fn pdc(&mut self, pdc: PdcId) {
        // 0 is the number of no PDC.
        if pdc != PdcId(0) {
            self.number("pdc", pdc.0);
        }
    }

    fn psn(&mut self, psn: Psn) {
        self.number("psn", psn.0);
    }

    fn nack(&mut self, psn: Psn, code: NackCode) {
        self.psn(psn);
        self.number("code", code.0);
        if let Some(name) = nack_name(code) {
            self.text("code_name", name);
        }
    }

    fn fields(&mut self, event: &Event) {
        match *event {
            Event::DataSent { pdc, psn, len, entropy, retransmission } => {
                self.pdc(pdc);
                self.psn(psn);
                self.number("len_bytes", len);
                self.number("entropy", entropy.0);
                self.flag("retransmission", retransmission);
            }
            Event::DataReceived { peer, pdc, psn, ecn } => {
                self.peer(peer);
                self.pdc(pdc);
                self.psn(psn);
                self.flag("ecn", ecn);
            }
            Event::DuplicateReceived { peer, pdc, psn } | Event::TrimmedReceived { peer, pdc, psn } => {
                self.peer(peer);
                self.pdc(pdc);
                self.psn(psn);
            }
            Event::AckSent { peer, pdc, cack } => {
                self.peer(peer);
                self.pdc(pdc);
                self.number("cack", cack.0);
            }
            Event::AckReceived { pdc, cack, rtt, remote, local, ecn } => {
                self.pdc(pdc);
                self.number("cack", cack.0);
                if let Some(rtt) = rtt {
                    self.number("rtt_ps", rtt.as_ps());
                }
                for (name, span) in [("remote_ps", remote), ("local_ps", local)] {
                    if span > Span::ZERO {
                        self.number(name, span.as_ps());
                    }
                }
                self.flag("ecn", ecn);
            }
            Event::NackSent { peer, pdc, psn, code } => {
                self.peer(peer);
                self.pdc(pdc);
                self.nack(psn, code);
            }
            Event::NackReceived { pdc, psn, code } => {
                self.pdc(pdc);
                self.nack(psn, code);
            }
            Event::ControlSent { peer, pdc, kind } => {
                self.peer(peer);
                self.pdc(pdc);
                self.text("kind", control_name(kind));
            }
            Event::LossInferred { pdc, psn } | Event::SpuriousLoss { pdc, psn } => {
                self.pdc(pdc);
                self.psn(psn);
            }
            Event::Timeout { pdc, psn, count } => {
                self.pdc(pdc);
                self.psn(psn);
                self.number("count", count);
            }
            Event::PdcOpened { peer, pdc, context } => {
                self.peer(peer);
                self.pdc(pdc);
                self.number("context", context);
            }
            Event::PdcClosed { peer, pdc } => {
                self.peer(peer);
                self.pdc(pdc);
            }
            Event::ControlDropped { peer } => self.peer(peer),
            Event::DatagramSent { peer, len, entropy } => {
                self.peer(peer);
                self.number("len_bytes", len);
                self.number("entropy", entropy.0);
            }
            Event::DatagramReceived { peer, len } => {
                self.peer(peer);
                self.number("len_bytes", len);
            }
            Event::DatagramDropped { peer, why } | Event::Ignored { peer, why } => {
                self.peer(peer);
                self.text("why", why);
            }
        }
    }
}

/// A string of JSON.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

fn control_name(kind: ControlKind) -> &'static str {
    match kind {
        ControlKind::Noop => "noop",
        ControlKind::AckRequest => "ack_request",
        ControlKind::ClearCommand => "clear_command",
        ControlKind::ClearRequest => "clear_request",
        ControlKind::CloseCommand => "close_command",
        ControlKind::CloseRequest => "close_request",
        ControlKind::Probe => "probe",
        ControlKind::Credit => "credit",
        ControlKind::CreditRequest => "credit_request",
        ControlKind::Negotiation => "negotiation",
    }
}

/// The specification's name of a code that this stack knows.
fn nack_name(code: NackCode) -> Option<&'static str> {
    Some(match code {
        NackCode::TRIMMED => "trimmed",
        NackCode::TRIMMED_LASTHOP => "trimmed_lasthop",
        NackCode::TRIMMED_ACK => "trimmed_ack",
        NackCode::NO_PDC_AVAIL => "no_pdc_avail",
        NackCode::NO_CCC_AVAIL => "no_ccc_avail",
        NackCode::NO_BITMAP => "no_bitmap",
        NackCode::NO_PKT_BUFFER => "no_pkt_buffer",
        NackCode::NO_GTD_DEL_AVAIL => "no_gtd_del_avail",
        NackCode::NO_SES_MSG_AVAIL => "no_ses_msg_avail",
        NackCode::NO_RESOURCE => "no_resource",
        NackCode::PSN_OOR_WINDOW => "psn_oor_window",
        NackCode::ROD_OOO => "rod_ooo",
        NackCode::INV_DPDCID => "inv_dpdcid",
        NackCode::PDC_HDR_MISMATCH => "pdc_hdr_mismatch",
        NackCode::CLOSING => "closing",
        NackCode::CLOSING_IN_ERR => "closing_in_err",
        NackCode::PKT_NOT_RCVD => "pkt_not_rcvd",
        NackCode::GTD_RESP_UNAVAIL => "gtd_resp_unavail",
        NackCode::ACK_WITH_DATA => "ack_with_data",
        NackCode::INVALID_SYN => "invalid_syn",
        NackCode::PDC_MODE_MISMATCH => "pdc_mode_mismatch",
        NackCode::NEW_START_PSN => "new_start_psn",
        NackCode::RCVD_SES_PROCG => "rcvd_ses_procg",
        NackCode::UNEXP_EVENT => "unexp_event",
        NackCode::RCVR_INFER_LOSS => "rcvr_infer_loss",
        NackCode::EXP_NORMAL => "exp_normal",
        NackCode::EXP_ERROR => "exp_error",
        NackCode::EXP_FATAL => "exp_fatal",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spray::Entropy;
    use weft_cc::Time;

    fn line(event: Event) -> String {
        let mut out = String::new();
        write_record(&mut out, &Record { at: Time::from_ps(1_234), host: 3, event });
        out
    }

    #[test]
    fn a_record_is_one_line_with_its_fields_in_a_fixed_order() {
        let (pdc, psn) = (PdcId(1), Psn(70_000));
        let sent = Event::DataSent { pdc, psn, len: 4096, entropy: Entropy(9), retransmission: true };
        assert_eq!(
            line(sent),
            "{\"time_ps\":1234,\"host\":3,\"event\":\"data_sent\",\"pdc\":1,\"psn\":70000,\"len_bytes\":4096,\
             \"entropy\":9,\"retransmission\":true}\n"
        );
        let nack = Event::NackReceived { pdc, psn, code: NackCode::TRIMMED };
        assert_eq!(
            line(nack),
            "{\"time_ps\":1234,\"host\":3,\"event\":\"nack_received\",\"pdc\":1,\"psn\":70000,\"code\":1,\
             \"code_name\":\"trimmed\"}\n"
        );
    }

    #[test]
    fn values_that_are_unknown_have_no_field() {
        let ack = |rtt, [remote, local]: [u64; 2]| {
            let [remote, local] = [remote, local].map(Span::from_ps);
            line(Event::AckReceived { pdc: PdcId(1), cack: Psn(2), rtt, remote, local, ecn: false })
        };
        let whole = ack(Some(Span::from_ps(5)), [3, 7]);
        assert!(whole.contains(",\"rtt_ps\":5,\"remote_ps\":3,\"local_ps\":7,\"ecn\""), "{whole}");
        let bare = ack(None, [0, 0]);
        assert!(["rtt_ps", "remote_ps", "local_ps"].iter().all(|name| !bare.contains(name)), "{bare}");
        let unknown = Event::NackReceived { pdc: PdcId(1), psn: Psn(2), code: NackCode(0x60) };
        assert!(line(unknown).ends_with("\"psn\":2,\"code\":96}\n"));
    }

    #[test]
    fn text_is_escaped() {
        let ignored = Event::Ignored { peer: Addr(4), why: "a \"b\" \\ \n" };
        assert!(line(ignored).ends_with("\"peer\":4,\"why\":\"a \\\"b\\\" \\\\ \\u000a\"}\n"));
    }

    #[test]
    fn lost_records_have_a_line_of_their_own() {
        let mut out = String::new();
        write_lost(&mut out, 17);
        assert_eq!(out, "{\"event\":\"lost_records\",\"count\":17}\n");
    }
}
