//! Ready-made authenticators that need no credentials in a hello: certificates, Unix users, addresses, and anonymous
//! peers. Codecs without a hello can use these only.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use super::{
    AuthFailure, AuthOutcome, AuthRequest, Authenticate, Identity, Proof, TableBytes, Users,
};
use tidewire_proto::setting::SettingError;

/// Asks several authenticators in turn. The first that knows the peer decides. If none does, the peer is refused. A
/// late answer is final. An authenticator of your own in a chain must implement [`Authenticate::current`]: its default
/// would keep identities that the others have withdrawn.
///
/// ```
/// use std::sync::Arc;
/// use tidewire::auth::{Chain, IdentityLimits, KnownPeers, Permissions, Users};
/// use tidewire::{Client, Context, Message, Server};
///
/// let mut users = Users::new(Permissions::everything());
/// for name in ["sensor-7", "root", "local", "anonymous"] {
///     users.add(name, None, IdentityLimits::default())?;
/// }
/// let users = Arc::new(users);
/// let known = KnownPeers::new(Arc::clone(&users))
///     .certificate("sensor-7.example.org", "sensor-7")
///     .unix_user(0, "root")
///     .address("127.0.0.0/8", "local")?
///     .admit_anonymous();
/// let chain = Chain::new().then(known);
/// let server = Server::builder()
///     .authenticate(chain)
///     .listen("tcp://127.0.0.1:0")?
///     .listen("inproc://chain-example")?
///     .start_one(|cx: &mut Context<'_>, _: Message<'_>| {
///         let name = cx.session().identity().map_or(String::new(), |identity| identity.name().to_owned());
///         cx.reply(name.as_bytes())
///     })?;
/// let by_address = Client::connect(&server.addresses()[0].to_string()).wait()?;
/// assert_eq!(by_address.request(b"").wait()?.payload(), b"local");
/// let unknown = Client::connect("inproc://chain-example").wait()?;
/// assert_eq!(unknown.request(b"").wait()?.payload(), b"anonymous");
///
/// assert!(KnownPeers::new(users).address("127.0.0.0/99", "local").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Chain(Vec<Box<dyn Authenticate>>);

/// Identifies users without credentials by a proof: a name in their certificate, their user id over a Unix socket, or
/// their address. The first of these that belongs to a user counts. Addresses of UDP can be forged unless the codec
/// validates them. Peers with credentials are not known: only an authenticator before this one could know them.
/// [`Chain`] has an example.
#[derive(Debug)]
pub struct KnownPeers {
    users: Arc<Users>,
    certificates: Vec<(Box<str>, Box<str>)>,
    unix_users: Vec<(u32, Box<str>)>,
    networks: Vec<(Network, Box<str>)>,
    accepts_unproven: bool,
    admits_anonymous: bool,
}

/// A range of addresses, such as `10.0.0.0/8` or a single address.
///
/// ```
/// use tidewire::auth::Network;
///
/// let network: Network = "10.0.0.0/8".parse()?;
/// assert!(network.contains("10.1.2.3".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

impl Chain {
    /// An empty chain.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an authenticator after the others.
    #[must_use]
    pub fn then(mut self, next: impl Authenticate) -> Self {
        self.0.push(Box::new(next));
        self
    }
}

impl Authenticate for Chain {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        for authenticator in &self.0 {
            match authenticator.authenticate(request) {
                AuthOutcome::Unknown => {}
                outcome => return outcome,
            }
        }
        AuthOutcome::Unknown
    }

    fn current(&self, identity: &Arc<Identity>) -> Option<Arc<Identity>> {
        self.0.iter().find_map(|it| it.current(identity))
    }

    fn is_reserved(&self, name: &str) -> bool {
        self.0.iter().any(|it| it.is_reserved(name))
    }

    fn measure(&self, tables: &mut TableBytes) {
        self.0.iter().for_each(|it| it.measure(tables));
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Chain({})", self.0.len())
    }
}

impl KnownPeers {
    /// Knows no peers yet.
    #[must_use]
    pub fn new(users: Arc<Users>) -> Self {
        Self {
            users,
            certificates: Vec::new(),
            unix_users: Vec::new(),
            networks: Vec::new(),
            accepts_unproven: false,
            admits_anonymous: false,
        }
    }

    /// The holder of a certificate with this name is this user.
    #[must_use]
    pub fn certificate(mut self, name: &str, user: &str) -> Self {
        self.certificates.push((name.into(), user.into()));
        self
    }

    /// Processes of this user id are this user.
    #[must_use]
    pub fn unix_user(mut self, uid: u32, user: &str) -> Self {
        self.unix_users.push((uid, user.into()));
        self
    }

    /// Peers of this range of addresses are this user. The first range that holds an address counts.
    ///
    /// # Errors
    /// The text is no range of addresses.
    pub fn address(mut self, network: &str, user: &str) -> Result<Self, SettingError> {
        self.networks.push((network.parse()?, user.into()));
        Ok(self)
    }

    /// Identifies also peers over UDP with an address that is [not proven](AuthRequest::is_address_proven). Use it only
    /// in a network without forged sender addresses.
    #[must_use]
    pub fn accept_unproven(mut self) -> Self {
        self.accepts_unproven = true;
        self
    }

    /// Admits every other peer that sent no credentials as the user [`Identity::ANONYMOUS`], if this user exists.
    #[must_use]
    pub fn admit_anonymous(mut self) -> Self {
        self.admits_anonymous = true;
        self
    }

    fn anonymous(&self) -> Option<Identity> {
        let users = self.admits_anonymous.then_some(&self.users)?;
        users.identity(Identity::ANONYMOUS)
    }

    /// Returns the first proof in the facts about a peer that belongs to a user.
    fn proof(&self, request: &AuthRequest<'_>) -> Option<Proof> {
        let by_certificate = || {
            let names = request.certificate_names()?;
            let is_named = |name: &str| names.iter().any(|it| it == name);
            let found = self.certificates.iter().find(|(name, _)| is_named(name));
            found.map(|(name, _)| Proof::Certificate(name.clone()))
        };
        let by_unix_user = || Some(Proof::UnixUser(request.unix()?.user_id));
        let by_address = || {
            let is_proven = request.is_address_proven() || self.accepts_unproven;
            let peer = request.peer().filter(|_| is_proven)?;
            Some(Proof::Address(peer.socket_address()?.ip()))
        };
        let is_known = |proof: &Proof| self.user_of(proof).is_some();
        by_certificate()
            .or_else(|| by_unix_user().filter(is_known))
            .or_else(|| by_address().filter(is_known))
    }

    fn user_of(&self, proof: &Proof) -> Option<&str> {
        let user = match proof {
            Proof::Certificate(wanted) => {
                let mut known = self.certificates.iter();
                &known.find(|(name, _)| name == wanted)?.1
            }
            Proof::UnixUser(wanted) => &self.unix_users.iter().find(|(id, _)| id == wanted)?.1,
            Proof::Address(address) => {
                let mut known = self.networks.iter();
                &known.find(|(network, _)| network.contains(*address))?.1
            }
            _ => return None,
        };
        Some(user)
    }
}

impl Authenticate for KnownPeers {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        // Credentials that no authenticator before this one knows are wrong.
        if !request.token().is_empty() {
            return AuthOutcome::Unknown;
        }
        let Some(proof) = self.proof(request) else {
            let anonymous = self.anonymous();
            return anonymous.map_or(AuthOutcome::Unknown, AuthOutcome::admit);
        };
        let identity = self.user_of(&proof).and_then(|it| self.users.identity(it));
        match identity {
            Some(identity) => AuthOutcome::admit(identity.proved_by(proof)),
            None => AuthOutcome::Refused(AuthFailure::Revoked),
        }
    }

    /// An identity stays admitted while its proof belongs to its user.
    fn current(&self, identity: &Arc<Identity>) -> Option<Arc<Identity>> {
        let by_proof = || {
            let proof = identity.proof()?;
            let is_same = self.user_of(proof)? == identity.name();
            let now = is_same.then(|| self.users.identity(identity.name()))??;
            Some(now.proved_by(proof.clone()))
        };
        let anonymous = || self.anonymous().filter(|_| identity.is_anonymous());
        by_proof().or_else(anonymous).map(Arc::new)
    }

    fn is_reserved(&self, name: &str) -> bool {
        self.users.is_reserved(name)
    }

    fn measure(&self, tables: &mut TableBytes) {
        tables.add_shared(&self.users, Users::measure);
        let certificates = self
            .certificates
            .iter()
            .map(|(name, user)| name.len() + user.len());
        let unix_users = self.unix_users.iter().map(|(_, user)| user.len());
        let networks = self.networks.iter().map(|(_, user)| user.len());
        tables.add(certificates.chain(unix_users).chain(networks).sum());
        tables.add(size_of_val(&*self.certificates));
        tables.add(size_of_val(&*self.unix_users) + size_of_val(&*self.networks));
    }
}

impl Network {
    /// Whether the address is in the range. An IPv4 address that is mapped to IPv6 is an IPv4 address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= self.prefix_bits
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= self.prefix_bits
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let error = || {
            let fault = format!(
                "{text:?} is not a range of addresses; use one such as 10.0.0.0/8, fd00::/8 or 192.0.2.7"
            );
            SettingError::new("network", text, fault)
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(bits_max), |bits| bits.parse().map_err(|_| error()))?;
        if prefix_bits > bits_max {
            return Err(error());
        }
        Ok(Self {
            address,
            prefix_bits,
        })
    }
}

#[cfg(test)]
mod tests {
    use tidewire_io::socket::PeerCredentials;

    use super::*;
    use tidewire_proto::layer::CertificateNames;

    use crate::address::Endpoint;
    use crate::auth::{IdentityLimits, LateAnswer, Permissions};

    fn users() -> Arc<Users> {
        let mut users = Users::new(Permissions::everything());
        for name in ["cert", "uid", "net", Identity::ANONYMOUS] {
            users.add(name, None, IdentityLimits::default()).unwrap();
        }
        Arc::new(users)
    }

    fn chain() -> Chain {
        let known = KnownPeers::new(users())
            .certificate("dev.example.org", "cert")
            .unix_user(1_000, "uid")
            .address("10.0.0.0/8", "net")
            .unwrap();
        Chain::new().then(known.admit_anonymous())
    }

    /// Returns the name of the peer, or an empty text.
    fn name(
        token: &[u8],
        peer: Option<&str>,
        unix: Option<PeerCredentials>,
        certificate: Option<&CertificateNames>,
    ) -> String {
        let peer = peer.map(|text| Endpoint::Tcp(text.parse().unwrap()));
        let outcome = chain().authenticate(&mut AuthRequest {
            token,
            peer: peer.as_ref(),
            unix,
            certificate_names: certificate,
            is_address_proven: true,
            later: &mut || LateAnswer::new(|_| {}),
        });
        match outcome {
            AuthOutcome::Admitted(identity) => identity.name().to_owned(),
            AuthOutcome::Unknown => String::new(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_kind_of_proof_gives_its_user_and_the_rest_is_anonymous() {
        let mut names = CertificateNames::default();
        names.dns = vec!["other".to_owned(), "dev.example.org".to_owned()];
        let unix = |uid| {
            Some(PeerCredentials {
                process_id: 1,
                user_id: uid,
                group_id: 1,
            })
        };
        assert_eq!(name(b"", Some("10.1.2.3:4"), None, Some(&names)), "cert");
        assert_eq!(name(b"", None, unix(1_000), None), "uid");
        assert_eq!(name(b"", None, unix(1_001), None), "anonymous");
        assert_eq!(name(b"", Some("10.1.2.3:4"), None, None), "net");
        assert_eq!(name(b"", Some("[::ffff:10.1.2.3]:4"), None, None), "net");
        assert_eq!(name(b"", Some("11.1.2.3:4"), None, None), "anonymous");
        assert_eq!(name(b"wrong", Some("10.1.2.3:4"), None, Some(&names)), "");
    }

    #[test]
    fn an_identity_stays_while_its_proof_is_that_of_its_user() {
        let users = users();
        let known = || KnownPeers::new(Arc::clone(&users));
        let by_uid = |uid, name| known().unix_user(uid, name);
        let by_name = |cert, name| known().certificate(cert, name);
        let by_address = |network, name| known().address(network, name).unwrap();
        let stays = |name: &str, proof: Proof, chain: Chain| {
            let identity = users.identity(name).unwrap().proved_by(proof);
            chain.current(&Arc::new(identity)).is_some()
        };
        let alone = |it| Chain::new().then(it);
        let uid = || Proof::UnixUser(7);
        assert!(stays("uid", uid(), alone(by_uid(7, "uid"))));
        assert!(!stays("uid", uid(), alone(by_uid(8, "uid"))));
        assert!(!stays("uid", uid(), alone(by_uid(7, "net"))));
        let other = alone(by_uid(8, "uid")).then(by_name("7", "uid"));
        assert!(!stays("uid", uid(), other));
        let name = || Proof::Certificate("a".into());
        assert!(stays(
            "cert",
            name(),
            Chain::new().then(by_name("a", "cert"))
        ));
        assert!(!stays(
            "cert",
            name(),
            Chain::new().then(by_name("b", "cert"))
        ));
        let address = || Proof::Address([10, 1, 2, 3].into());
        let by = |network| Chain::new().then(by_address(network, "net"));
        assert!(stays("net", address(), by("10.0.0.0/8")));
        assert!(!stays("net", address(), by("10.0.0.0/16")));
        let gone = Identity::new("gone", Permissions::everything()).proved_by(uid());
        assert!(chain().current(&Arc::new(gone)).is_none());
        assert!(chain().is_reserved("cert") && !chain().is_reserved("eve"));
    }

    #[test]
    fn ranges_of_addresses_have_their_usual_form() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
        ] {
            let network: Network = text.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{text}");
            assert!(!network.contains(outside.parse().unwrap()), "{text}");
        }
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "a"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
