//! The types whose fields are all public, because users build, match and read the values as they are.
//!
//! Problem: an open field is a fault where a type has an invariant, and right where any combination of values is legal.
//! A rule that reads sources cannot tell these apart. Approach: a list, with a reason for each group. A type of the
//! list is `pub`, and so are all of its fields: a type that also hides something has an invariant, and does not belong
//! here.

use std::collections::BTreeMap;

use syn::{ItemStruct, Visibility};

/// The reason of a group, and its types: in each row a file without `src` and `.rs`, and the types of this file.
type Group = (&'static str, &'static [&'static str]);

const PLAIN_DATA: &[Group] = &[
    (
        "part of a packet between nodes: any values are legal, and the receiver judges them",
        &[
            "tidewire-proto/backplane/directed: Directed ServiceAnswer ServiceRequest",
            "tidewire-proto/backplane/mod: NodeLife Packet SequencePacket SequencePoint",
        ],
    ),
    (
        "part of a message on the wire: any values are legal, and the encoder checks what has to fit",
        &[
            "tidewire-proto/body/mod: ErrorBody GapBody GoAwayBody JoinBody JoinedBody MovedBody PresenceBody",
            "tidewire-proto/body/position: PositionBody RecoveryBody",
            "tidewire-proto/body/topic: SubscribeBody",
            "tidewire-proto/codec/room: ChatMessage Presence Subscription",
            "tidewire-proto/codec/srmp_rpc/mod: RpcPayload",
            "tidewire-proto/codec/uvrpc/error: ErrorParams",
            "tidewire-proto/codec/uvrpc/frame: BroadcastMessage RpcFrame",
            "tidewire-proto/connection/reason: Farewell",
            "tidewire-proto/handshake/mod: Hello Offer Welcome",
            "tidewire-proto/message: Message",
        ],
    ),
    (
        "what a codec says about its format, as one constant that the author of the codec writes",
        &["tidewire-proto/codec/format: Format"],
    ),
    (
        "settings: users write them as a literal, and the function that takes them checks them",
        &[
            "tidewire-proto/connection/mod: Introduction Rules",
            "tidewire-proto/room/policy: LagLimits",
            "tidewire-proto/websocket/mod: HeadLimits",
            "tidewire/auth/identity: IdentityLimits",
            "tidewire/auth/permissions: Permissions",
            "tidewire/backplane/mod: NodeSettings",
            "tidewire/dial/pace: Backoff",
            "tidewire/history/limits: History",
        ],
    ),
    (
        "figures of one moment: users only read them, and a change has no effect",
        &[
            "tidewire-proto/layer/mod: Encryption",
            "tidewire/backplane/mod: NodeFigures PeerFigures",
            "tidewire/mailbox/inspection: RoomFigures",
            "tidewire/observe/log/tally: LogMetrics",
            "tidewire/session/broadcast: BroadcastReport",
            "tidewire/session/figures: Lag LaneFigures SessionFigures",
            "tidewire/workers: WorkerMetrics",
        ],
    ),
    (
        "a number of the wire under a type of its own: every number is legal",
        &["tidewire-proto/message: MemberId Position RoomId SubscriptionId"],
    ),
    (
        "the result of one call of the protocol, which the caller takes apart at once",
        &[
            "tidewire-proto/backplane/sequence: Arrival EntryCounts",
            "tidewire-proto/connection/mod: Wants",
            "tidewire-proto/handshake/mod: Agreed",
            "tidewire-proto/room/subscriber: Advance ToldLatest",
            "tidewire-proto/websocket/reader: Received",
        ],
    ),
    (
        "an answer of a backplane: its author writes it as a literal, and the node judges it",
        &["tidewire/backplane/histories/mod: HistoryMessage HistoryState"],
    ),
    (
        "handed to the user, who takes it apart and owns the parts",
        &[
            "tidewire/client/error: Disconnected",
            "tidewire/client/events: OwnedMessage",
            "tidewire/client/subscription: TopicMessage",
            "tidewire/room/members/mod: Joined",
            "tidewire/server/mod: Stopped",
            "tidewire/service/async_service: AsyncRequest",
            "tidewire/service/chat/hooks: ChatMessage",
        ],
    ),
    (
        "groups of limits: each group has private fields and checked setters",
        &["tidewire/limits: Limits"],
    ),
];

/// The listed types with their files, and the reason of each.
pub(crate) fn reasons() -> BTreeMap<(&'static str, &'static str), &'static str> {
    let mut reasons = BTreeMap::new();
    for (reason, rows) in PLAIN_DATA {
        for row in *rows {
            let (file, types) = row.split_once(": ").expect("a file and its types");
            reasons.extend(types.split(' ').map(|name| ((file, name), *reason)));
        }
    }
    reasons
}

/// Whether the type and all of its fields are `pub`.
pub(crate) fn hides_nothing(item: &ItemStruct) -> bool {
    let is_public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
    is_public(&item.vis) && item.fields.iter().all(|field| is_public(&field.vis))
}
