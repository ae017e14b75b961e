//! TLS, with rustls: stock brokers and name servers take it on their ordinary port, told apart by a connection's first byte.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{self, CryptoProvider};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::connection::Stream;
use crate::error::{Error, Result};

/// Whom connections over TLS trust, and what they show of themselves. For [`crate::ClientBuilder::tls`].
#[derive(Clone)]
pub struct Tls {
    /// `None` trusts everybody.
    roots: Option<Arc<RootCertStore>>,
    identity: Option<Arc<Identity>>,
    server_name: Option<ServerName<'static>>,
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("verified", &self.roots.is_some())
            .field("client_certificate", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

impl Tls {
    /// Trusts servers whose certificate is signed by one of these, in PEM form, and is for the name or address that is connected to (see
    /// [`Tls::server_name`]).
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no certificate in it, or one that cannot be read.
    pub fn trusting(roots_pem: &[u8]) -> Result<Tls> {
        let mut roots = RootCertStore::empty();
        for root in certificates(roots_pem)? {
            roots.add(root).map_err(|e| Error::invalid(format!("a root certificate: {e}")))?;
        }
        Ok(Tls { roots: Some(Arc::new(roots)), identity: None, server_name: None })
    }

    /// Trusts whoever answers: nobody reads along, but the one who answers may be anybody. For servers with a certificate of their own making,
    /// which is what stock ones have unless they are given one.
    #[must_use]
    pub fn unverified() -> Tls {
        Tls { roots: None, identity: None, server_name: None }
    }

    /// Shows servers that ask for it this certificate chain, with its key, both in PEM form.
    ///
    /// # Errors
    /// [`Error::Invalid`] when either cannot be read.
    pub fn client_certificate(mut self, chain_pem: &[u8], key_pem: &[u8]) -> Result<Tls> {
        let key = PrivateKeyDer::from_pem_slice(key_pem)
            .map_err(|e| Error::invalid(format!("the key of the client's certificate: {e}")))?;
        self.identity = Some(Arc::new(Identity { chain: certificates(chain_pem)?, key }));
        Ok(self)
    }

    /// The name that all servers' certificates are for, where brokers are connected to by addresses.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what can be no name.
    pub fn server_name(mut self, name: &str) -> Result<Tls> {
        self.server_name = Some(parse_name(name).map_err(|e| Error::invalid(e.to_string()))?);
        Ok(self)
    }

    pub(crate) fn connector(&self) -> Result<Connector> {
        let provider = Arc::new(crypto::ring::default_provider());
        let invalid = |e: rustls::Error| Error::invalid(format!("the settings of TLS: {e}"));
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(invalid)?;
        let builder = match &self.roots {
            Some(roots) => builder.with_root_certificates(roots.clone()),
            None => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(TrustEverybody(provider))),
        };
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
                .map_err(invalid)?,
        };
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Connector { connector, server_name: self.server_name.clone() })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = read.map_err(|e| Error::invalid(format!("certificates in PEM form: {e}")))?;
    match found.is_empty() {
        true => Err(Error::invalid("no certificate in PEM form: give at least one")),
        false => Ok(found),
    }
}

fn parse_name(name: &str) -> io::Result<ServerName<'static>> {
    let bad = |e| io::Error::new(io::ErrorKind::InvalidInput, format!("server name {name}: {e}"));
    ServerName::try_from(name.to_owned()).map_err(bad)
}

/// What encrypts connections.
pub(crate) struct Connector {
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl Connector {
    pub(super) async fn open(&self, addr: &str, stream: TcpStream) -> io::Result<Stream> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => {
                let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
                parse_name(host.trim_matches(['[', ']']))?
            }
        };
        let stream = self.connector.connect(name, stream).await;
        let stream = stream.map_err(|e| io::Error::new(e.kind(), format!("TLS: {e}")))?;
        let (read, write) = tokio::io::split(stream);
        Ok(Stream { read: Box::new(read), write: Box::new(write) })
    }
}

/// Believes in every certificate, though not in a signature that is none.
#[derive(Debug)]
struct TrustEverybody(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustEverybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, cert, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, cert, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, React, ok};
    use crate::{Client, Message};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::server::WebPkiClientVerifier;

    /// Certificates of nobody: two authorities, and two servers that the first has signed, for a name and for an address.
    const OURS: &[u8] = include_bytes!("tls_test/authority.pem");
    const OTHERS: &[u8] = include_bytes!("tls_test/other.pem");
    const NAMED: Pem = (include_bytes!("tls_test/named.pem"), include_bytes!("tls_test/named.key"));
    const ADDRESS: Pem =
        (include_bytes!("tls_test/address.pem"), include_bytes!("tls_test/address.key"));

    type Pem = (&'static [u8], &'static [u8]);

    /// A peer behind TLS. It may want a certificate of that authority from who connects.
    async fn encrypted(plain: &Fake, of: Pem, clients: Option<&[u8]>) -> String {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(certificates(authority).unwrap().remove(0)).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::from_pem_slice(of.1).unwrap();
        let chain = certificates(of.0).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, to) = (listener.local_addr().unwrap(), plain.addr());
        // It ends with the test's runtime.
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (acceptor, to) = (acceptor.clone(), to.clone());
                tokio::spawn(async move {
                    let Ok(mut client) = acceptor.accept(client).await else { return };
                    let mut peer = TcpStream::connect(to).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut peer).await;
                });
            }
        });
        addr.to_string()
    }

    async fn names(addr: &str, tls: Tls) -> Result<Vec<String>> {
        let client = Client::builder().name_server(addr).tls(tls).build()?;
        let timeout = std::time::Duration::from_millis(500);
        let servers = &client.instance().routes.servers;
        let ask = ringmq_net::command::Command::request(
            ringmq_net::code::request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        );
        servers.call(&ask, timeout).await.map(|(addr, _)| vec![addr.to_string()])
    }

    #[tokio::test]
    async fn a_server_is_believed_by_its_certificate_and_name_and_no_other() {
        let plain = Fake::start(|_| React::Answer(ok())).await;
        let named = encrypted(&plain, NAMED, None).await;
        let trusting = |authority: &[u8]| Tls::trusting(authority).unwrap();
        names(&named, trusting(OURS).server_name("brokers.test").unwrap()).await.unwrap();
        let refused = [
            trusting(OURS),
            trusting(OURS).server_name("else.test").unwrap(),
            trusting(OTHERS).server_name("brokers.test").unwrap(),
        ];
        for tls in refused {
            let error = names(&named, tls).await.unwrap_err();
            assert!(error.to_string().contains("TLS: "), "{error}");
        }
        let by_address = encrypted(&plain, ADDRESS, None).await;
        names(&by_address, trusting(OURS)).await.unwrap();
        names(&named, Tls::unverified()).await.unwrap();
        // No TLS there at all.
        let error = names(&plain.addr(), Tls::unverified()).await.unwrap_err();
        assert!(error.is_network(), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_wants_a_certificate_gets_the_clients() {
        let plain = Fake::start(|_| React::Answer(ok())).await;
        let addr = encrypted(&plain, ADDRESS, Some(OURS)).await;
        let tls = Tls::trusting(OURS).unwrap();
        assert!(names(&addr, tls.clone()).await.is_err());
        let tls = tls.client_certificate(NAMED.0, NAMED.1).unwrap();
        names(&addr, tls).await.unwrap();
    }

    #[tokio::test]
    async fn messages_of_any_size_go_through() {
        let broker = Fake::start(|command| {
            let reply = ok().with_ext("msgId", command.body.len()).with_ext("queueId", 0);
            React::Answer(reply.with_ext("queueOffset", 0).with_body(command.body.clone()))
        })
        .await;
        let broker_addr = encrypted(&broker, ADDRESS, None).await;
        let servers = Fake::name_server(vec![("a", broker_addr)], 1).await;
        let servers_addr = encrypted(&servers, ADDRESS, None).await;
        let tls = Tls::trusting(OURS).unwrap();
        let client = Client::builder().name_server(servers_addr).tls(tls).build().unwrap();
        let builder = client.producer("g").compression(Default::default(), usize::MAX);
        let producer = builder.start().await.unwrap();
        for len in [1, 5_000, 100_000, 3_000_000] {
            let receipt = producer.send(Message::new("t", vec![7; len])).await.unwrap();
            assert_eq!(receipt.offset_message_id, len.to_string());
        }
        client.shutdown().await.unwrap();
    }

    #[test]
    fn what_is_no_certificate_is_refused_with_a_reason() {
        for pem in ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            assert!(matches!(Tls::trusting(pem.as_bytes()), Err(Error::Invalid(_))), "{pem}");
        }
        assert!(Tls::unverified().server_name("a b").is_err());
        assert!(Tls::unverified().client_certificate(b"", b"").is_err());
    }
}
