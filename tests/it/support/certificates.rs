//! Certificates of a test's own, and a door that speaks TLS.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// An authority, and certificates of it for 127.0.0.1 and for a client, as files.
pub fn certificates() -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    let mut authority = CertificateParams::new([]).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().expect("a key");
    let certificate = authority
        .self_signed(&authority_key)
        .expect("a certificate");
    let write = |name: &str, pem: String| {
        fs::write(folder.path().join(name), pem).expect("a new file");
    };
    write("ca.pem", certificate.pem());

    let issuer = Issuer::new(authority, authority_key);
    for (name, whose) in [("server", "127.0.0.1"), ("client", "worker.example.com")] {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([whose.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        write(&format!("{name}.pem"), certificate.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    folder
}

/// TLS in front of a service that speaks none; closed with the value.
#[derive(Debug)]
pub struct TlsDoor {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl TlsDoor {
    /// With these certificates; asks the client for one of its own where `mutual`.
    pub async fn open(certificates: &Path, upstream: SocketAddr, mutual: bool) -> Self {
        let acceptor = TlsAcceptor::from(Arc::new(server_config(certificates, mutual)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let Ok(mut upstream) = TcpStream::connect(upstream).await else {
                        return;
                    };
                    // However it ends, both are closed then.
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut upstream).await;
                });
            }
        });
        Self { address, serving }
    }
}

impl Drop for TlsDoor {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn server_config(certificates: &Path, mutual: bool) -> ServerConfig {
    let file = |name: &str| certificates.join(name);
    let certificate = CertificateDer::from_pem_file(file("server.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(file("server.key")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has them");
    let config = if mutual {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(file("ca.pem")).expect("a certificate");
        roots.add(authority).expect("an authority");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        config.with_client_cert_verifier(verifier.build().expect("an authority"))
    } else {
        config.with_no_client_auth()
    };
    let mut config = config
        .with_single_cert(vec![certificate], key)
        .expect("they belong together");
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}
