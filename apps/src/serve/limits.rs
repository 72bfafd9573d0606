//! The table of what a server has of each resource, who may have how much of it, and what happens at the limit.

use std::borrow::Cow;

use weft::core::worker::PACKETS_PER_TURN;
use weft::core::worker::session::{
    BYTES_ALONE, BYTES_PER_TURN, COMMANDS_PER_TURN, ENDS_PER_QUIET_TURN, ENDS_PER_TURN, GRACE, JOINING,
    LET_GO_PER_TURN, LimitRow, REPORTS_PER_TURN, reserved_part,
};
use weft::core::{
    BOOK, COMPLETED_PER_BURST, CONNECTIONS_PER_CALL, CONTEXTS_PER_PEER, CONTROL_IN_ORDER, INCOMPLETE_PER_PDC,
    Limits, MESSAGES_PER_CALL, PACKETS_PER_CALL, QUESTIONS_PER_CALL, REFUSED_PER_PDC, SILENT_PER_CALL,
    Settings,
};

use super::{LEAST_UNEXPECTED, PEERS, RESPONSES, ServeArgs};

/// One resource.
struct Row {
    /// Its row, and how much of it the endpoint has.
    what: LimitRow,
    all: String,
    /// The kind of party that shares it.
    holder: &'static str,
    /// How much is reserved for each of them, and how much one may have at most.
    reserved: String,
    most: String,
    /// The consequence of a request beyond the limit.
    then: Cow<'static, str>,
}

const HEADER: &str = "\
| resource | of the endpoint | holder | reserved for each | most of one | beyond that |
|---|---|---|---|---|---|
";

/// The table, as Markdown.
pub(super) fn table(args: &ServeArgs) -> String {
    let line = |row: Row| {
        let Row { what, all, holder, reserved, most, then } = row;
        let what = what.name();
        format!("| {what} | {all} | {holder} | {reserved} | {most} | {then} |\n")
    };
    let rows: String = rows(args).into_iter().map(line).collect();
    format!("{HEADER}{rows}")
}

fn rows(args: &ServeArgs) -> Vec<Row> {
    // Each of them has a row, so that a new one is not forgotten.
    let Limits {
        connections,
        pdcs_per_peer,
        pdcs,
        half_open_pdcs,
        half_open_pdcs_per_peer,
        closed_pdcs_per_peer,
        credit_senders,
        sends,
        // An application's receives count as operations, which have a row of their own.
        receives: _,
        receive_kinds,
        // Applications.
        processes: _,
        unexpected_messages,
        unexpected_bytes,
        unexpected_messages_per_peer,
        unexpected_bytes_per_peer,
        reorder_bytes,
        response_bytes_per_peer,
        // It depends on the host.
        response_bytes: _,
        control_queue,
        reorder_packets,
    } = args.limits();
    let applications = u64::from(args.applications);
    let none = || "–".to_owned();
    let part = |total: u64| reserved_part(total, applications).to_string();
    let asked = || "what it asks for".to_owned();
    let rest = || "its part and half of the rest".to_owned();
    // How much these are depends on the host.
    let kept = |bytes: u64, default: u64, least: &str| match args.unexpected_total {
        Some(_) => bytes.to_string(),
        None => format!("{default}, or an eighth of the host's memory if that is less{least}"),
    };
    let least_unexpected = format!(", but at least {LEAST_UNEXPECTED}");
    let window = format!("{}, or as many as a zone needs for its link", Settings::default().mp_range);
    let most = Limits::default();
    let book = BOOK.saturating_sub(1 + args.peers.len()) as u64;
    vec![
        Row {
            what: LimitRow::Applications,
            all: applications.to_string(),
            holder: "process",
            reserved: "0".to_owned(),
            most: "2, an even part, or as many as it leaves".to_owned(),
            then: "the join is refused".into(),
        },
        Row {
            what: LimitRow::Joining,
            all: JOINING.to_string(),
            holder: "process",
            reserved: "0".to_owned(),
            most: "2, or as many as it leaves".to_owned(),
            then: format!(
                "the join is refused; one that has sent no request for {} ms makes room",
                GRACE.as_millis()
            )
            .into(),
        },
        Row {
            what: LimitRow::WaitingForMemory,
            all: JOINING.to_string(),
            holder: "process",
            reserved: "0".to_owned(),
            most: "2, or as many as it leaves".to_owned(),
            then: "the join is refused".into(),
        },
        Row {
            what: LimitRow::Operations,
            all: sends.to_string(),
            holder: "application",
            reserved: asked(),
            most: args.operations.to_string(),
            then: "the join is refused; `ClientError::Exhausted`".into(),
        },
        Row {
            what: LimitRow::SessionMemory,
            all: args.memory_total.map_or_else(|| "half of the host's".to_owned(), |bytes| bytes.to_string()),
            holder: "application",
            reserved: asked(),
            most: format!(
                "{}, and its rings; a process with more than 2 an even part, or as much as it leaves",
                args.memory
            ),
            then: "the join is refused, or waits while memory is unmapped".into(),
        },
        Row {
            what: LimitRow::Connections,
            all: connections.to_string(),
            holder: "application",
            reserved: asked(),
            most: args.connections.to_string(),
            then: "the join is refused; `ClientError::Exhausted`".into(),
        },
        Row {
            what: LimitRow::PeerConnections,
            all: pdcs_per_peer.to_string(),
            holder: "process",
            reserved: part(pdcs_per_peer.into()),
            most: rest(),
            then: "`Limit { PeerConnections }`".into(),
        },
        Row {
            what: LimitRow::PacketsInFlight,
            all: none(),
            holder: "connection",
            reserved: window.clone(),
            most: window,
            then: "they wait".into(),
        },
        Row {
            what: LimitRow::Peers,
            all: book.to_string(),
            holder: "process",
            reserved: reserved_part(book, applications).min(PEERS.into()).to_string(),
            most: format!("{PEERS} of each application; its part and half of the rest"),
            then: "the join is refused; the one needed least makes room; `Limit { Peers }`, `Limit { SessionPeers }`"
                .into(),
        },
        Row {
            what: LimitRow::PeerCosts,
            all: none(),
            holder: "process",
            reserved: PEERS.to_string(),
            most: format!("{PEERS}, or what its applications may add together"),
            then: "`Limit { SessionPeers }`".into(),
        },
        Row {
            what: LimitRow::ReceiveKinds,
            all: none(),
            holder: "application",
            reserved: receive_kinds.to_string(),
            most: receive_kinds.to_string(),
            then: "`Limit { ReceiveKinds }`".into(),
        },
        Row {
            what: LimitRow::UnexpectedMessages,
            all: unexpected_messages.to_string(),
            holder: "application",
            reserved: part(unexpected_messages as u64),
            most: rest(),
            then: "NO_SES_MSG_AVAIL".into(),
        },
        Row {
            what: LimitRow::UnexpectedMessagesOfPeer,
            all: "as above".to_owned(),
            holder: "peer and process",
            reserved: "0".to_owned(),
            most: format!("{unexpected_messages_per_peer}, and half of what there is"),
            then: "NO_SES_MSG_AVAIL".into(),
        },
        Row {
            what: LimitRow::UnexpectedBytes,
            all: kept(unexpected_bytes, most.unexpected_bytes, &least_unexpected),
            holder: "application",
            reserved: match args.unexpected_total {
                Some(_) => part(unexpected_bytes),
                None => format!("{}, or as much less", part(most.unexpected_bytes)),
            },
            most: rest(),
            then: "NO_PKT_BUFFER".into(),
        },
        Row {
            what: LimitRow::UnexpectedBytesOfPeer,
            all: "as above".to_owned(),
            holder: "peer and process",
            reserved: "0".to_owned(),
            most: format!("{unexpected_bytes_per_peer}, and half of what there is"),
            then: "NO_PKT_BUFFER".into(),
        },
        Row {
            what: LimitRow::IncompleteMessages,
            all: format!("{unexpected_messages}, and {INCOMPLETE_PER_PDC} of each PDC"),
            holder: "peer and process",
            reserved: format!("{INCOMPLETE_PER_PDC} of each PDC"),
            most: format!(
                "{unexpected_messages_per_peer}, and as much as it leaves; of a PDC twice its window"
            ),
            then: "NO_SES_MSG_AVAIL".into(),
        },
        Row {
            what: LimitRow::Pdcs,
            all: pdcs.to_string(),
            holder: "peer",
            reserved: "0".to_owned(),
            most: format!("{pdcs_per_peer}, and as much as it leaves"),
            then: "NO_PDC_AVAIL".into(),
        },
        Row {
            what: LimitRow::HalfOpenPdcs,
            all: half_open_pdcs.to_string(),
            holder: "peer",
            reserved: "0".to_owned(),
            most: half_open_pdcs_per_peer.to_string(),
            then: "the oldest that was asked makes room, of the peer's own after an RTO; NO_PDC_AVAIL".into(),
        },
        Row {
            what: LimitRow::CreditSenders,
            all: credit_senders.to_string(),
            holder: "peer",
            reserved: "0".to_owned(),
            most: CONTEXTS_PER_PEER.to_string(),
            then: "the one that has had none for longest makes room".into(),
        },
        Row {
            what: LimitRow::RememberedPdcs,
            all: none(),
            holder: "peer",
            reserved: closed_pdcs_per_peer.to_string(),
            most: closed_pdcs_per_peer.to_string(),
            then: "NO_PDC_AVAIL".into(),
        },
        Row {
            what: LimitRow::EarlyPackets,
            all: none(),
            holder: "peer",
            reserved: reorder_packets.to_string(),
            most: reorder_packets.to_string(),
            then: "ROD_OOO".into(),
        },
        Row {
            what: LimitRow::EarlyBytes,
            all: kept(reorder_bytes, most.reorder_bytes, ""),
            holder: "peer",
            reserved: "0".to_owned(),
            most: format!("{unexpected_bytes_per_peer}, and as much as it leaves"),
            then: "ROD_OOO".into(),
        },
        Row {
            what: LimitRow::RefusedNotes,
            all: "as above, together".to_owned(),
            holder: "peer",
            reserved: format!("{REFUSED_PER_PDC} of each PDC"),
            most: "as above, together".to_owned(),
            then: "NO_GTD_DEL_AVAIL; for the next packet of a PDC those before it make room".into(),
        },
        Row {
            what: LimitRow::ResponseBytes,
            all: format!("{}, or 1/{RESPONSES} of the host's memory if that is less", most.response_bytes),
            holder: "peer",
            reserved: "the first of each PDC".to_owned(),
            most: format!("{response_bytes_per_peer}, and as much as it leaves"),
            then: "NO_GTD_DEL_AVAIL".into(),
        },
        Row {
            what: LimitRow::ControlQueue,
            all: control_queue.to_string(),
            holder: "peer",
            reserved: "0".into(),
            most: format!("as much as it leaves, and {CONTROL_IN_ORDER} that leave in order"),
            then: "dropped and counted (`control_dropped`)".into(),
        },
        Row {
            what: LimitRow::Timers,
            all: none(),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "each belongs to something that has a row".into(),
        },
        Row {
            what: LimitRow::Cancels,
            all: "0".into(),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "each ends with its command".into(),
        },
        Row {
            what: LimitRow::CommandsPerTurn,
            all: format!("{COMMANDS_PER_TURN}, or one of each process if that is more"),
            holder: "process",
            reserved: "an even part among those that have some".into(),
            most: COMMANDS_PER_TURN.to_string(),
            then: "they wait for the next turn".into(),
        },
        Row {
            what: LimitRow::BytesPerTurn,
            all: BYTES_PER_TURN.to_string(),
            holder: "process",
            reserved: "an even part among those that touch some".into(),
            most: format!("{BYTES_ALONE}, or {BYTES_PER_TURN} after a turn without"),
            then: "the command goes on in the next turn".into(),
        },
        Row {
            what: LimitRow::PacketsPerTurn,
            all: PACKETS_PER_TURN.to_string(),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "they leave in the next turns".into(),
        },
        Row {
            what: LimitRow::CompletedPerTurn,
            all: format!("{COMPLETED_PER_BURST}, and the window of one connection"),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "further packets are read in the next turns".into(),
        },
        Row {
            what: LimitRow::UnsentPerTurn,
            all: format!("{ENDS_PER_TURN}, or {ENDS_PER_QUIET_TURN} while nothing else happens"),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "they end in the next turns".into(),
        },
        Row {
            what: LimitRow::TimersPerTurn,
            all: format!(
                "{CONNECTIONS_PER_CALL}, or fewer after {PACKETS_PER_CALL} packets and looks at others"
            ),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "they have their turn in the next ones".into(),
        },
        Row {
            what: LimitRow::LetGoPerTurn,
            all: LET_GO_PER_TURN.to_string(),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "they have their turn in the next ones".into(),
        },
        Row {
            what: LimitRow::PdcsPerTurn,
            all: format!("{SILENT_PER_CALL}, or fewer with {MESSAGES_PER_CALL} messages"),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "they end in the next turns".into(),
        },
        Row {
            what: LimitRow::QuestionsPerTurn,
            all: QUESTIONS_PER_CALL.to_string(),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "they are asked in the next turns".into(),
        },
        Row {
            what: LimitRow::ReportsPerTurn,
            all: none(),
            holder: "application",
            reserved: REPORTS_PER_TURN.to_string(),
            most: REPORTS_PER_TURN.to_string(),
            then: "they move in the next turns".into(),
        },
        Row {
            what: LimitRow::JoinRate,
            all: "1".to_owned(),
            holder: "–",
            reserved: none(),
            most: none(),
            then: "they wait".into(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tests::serve;

    #[test]
    fn the_table_has_each_row_once_and_in_order() {
        let table: Vec<LimitRow> = rows(&serve(&[])).into_iter().map(|row| row.what).collect();
        assert_eq!(table, LimitRow::ALL);
    }
}
