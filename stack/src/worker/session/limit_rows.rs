//! The rows of the table of limits, which `weft serve --limits` prints and `docs/limits.md` has.

macro_rules! rows {
    ($($row:ident = $name:literal,)*) => {
        /// A row of the table of limits: something of which an endpoint has a limited amount.
        ///
        /// The table is made of these, and a test says for each of them how one holder fills it (`tests/filled.rs` here), so that no
        /// row is without its test. What belongs to something that has a row has none itself; `docs/limits.md` names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LimitRow {
            $(#[doc = $name] $row,)*
        }

        impl LimitRow {
            /// All of them, in the order of the table.
            pub const ALL: &[LimitRow] = &[$(LimitRow::$row,)*];

            /// What is limited.
            pub fn name(self) -> &'static str {
                match self {
                    $(LimitRow::$row => $name,)*
                }
            }
        }
    };
}

rows! {
    Applications = "applications",
    Joining = "applications that are joining",
    WaitingForMemory = "applications that wait for memory",
    Operations = "operations of applications",
    SessionMemory = "bytes of memory that applications share with the server",
    Connections = "connections",
    PeerConnections = "connections to one peer",
    PacketsInFlight = "packets of a connection that are not acknowledged, 40 bytes each",
    Peers = "peers that applications add",
    PeerCosts = "peers that applications add, or that the port refuses, in 10 s",
    ReceiveKinds = "kinds of receives",
    UnexpectedMessages = "unexpected messages",
    UnexpectedMessagesOfPeer = "unexpected messages to one application",
    UnexpectedBytes = "bytes of unexpected messages",
    UnexpectedBytesOfPeer = "bytes of unexpected messages to one application",
    IncompleteMessages = "messages of which a part has arrived",
    Pdcs = "PDCs that peers open",
    HalfOpenPdcs = "half-open PDCs",
    CreditSenders = "contexts that ask for credit and have no PDC",
    RememberedPdcs = "PDCs open or remembered",
    EarlyPackets = "early ROD packets of one PDC",
    EarlyBytes = "bytes of early ROD packets",
    RefusedNotes = "notes of messages of which the rest is refused, 48 bytes each",
    ResponseBytes = "bytes of stored responses",
    ControlQueue = "control packets that wait for the port",
    Timers = "timers",
    Cancels = "cancels in progress",
    CommandsPerTurn = "commands in a turn of the worker's loop",
    BytesPerTurn = "bytes of messages that wait which commands touch in a turn",
    PacketsPerTurn = "packets that leave in a turn",
    CompletedPerTurn = "operations that packets of peers complete in a turn",
    UnsentPerTurn = "unsent messages that end in a turn as their applications leave or their connections fail",
    TimersPerTurn = "connections whose timers expire, or that fail, in a turn",
    LetGoPerTurn = "connections that have waited for the address of a peer, and go on or are refused in a turn",
    PdcsPerTurn = "PDCs of silent peers, or closed in the middle of many messages, that end in a turn",
    QuestionsPerTurn = "silent initiators that are asked in a turn whether they are there",
    ReportsPerTurn = "reports that waited and move to the ring of their application in a turn",
    JoinRate = "joins in 250 µs",
}
