//! TLS: what `sslmode` and `sslrootcert` mean, as PostgreSQL's own clients take them, on rustls.
//!
//! `prefer` and `require` encrypt the connection and accept any server; `verify-ca` asks
//! that its certificate was signed by one of the roots, `verify-full` that it is its name's too. As with other clients, a
//! root that is named turns `require` into `verify-ca`. Names are looked for where certificates have had them since 2000,
//! not in the common name.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// Where other clients look for roots where none are named, below the home.
const ROOTS: &str = ".postgresql/root.crt";

/// What is asked of the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateCheck {
    Nothing,
    Root,
    RootAndName,
}

/// How encrypted connections are made.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the roots, if any are asked for.
    pub(super) fn new(asked: CertificateCheck, roots: Option<&Path>) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Verifier::new(asked, roots, provider.clone())?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

#[derive(Debug)]
struct Verifier {
    asked: CertificateCheck,
    roots: Vec<CertificateDer<'static>>,
    /// None where nothing is asked.
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(asked: CertificateCheck, roots: Option<&Path>, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        if asked == CertificateCheck::Nothing {
            return Ok(Self { asked, roots: Vec::new(), chain: None, provider });
        }
        let default = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(ROOTS));
        let path = roots.map(Path::to_owned).or_else(default).unwrap_or_default();
        let unusable = |why: &dyn std::fmt::Display| format!("`sslrootcert={}` cannot be used: {why}", path.display());
        let all: Vec<CertificateDer<'static>> =
            CertificateDer::pem_file_iter(&path).and_then(Iterator::collect).map_err(|error| unusable(&error))?;
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(all.iter().cloned());
        if added == 0 {
            return Err(unusable(&"there is no certificate in it"));
        }
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone()).build();
        Ok(Self { asked, roots: all, chain: Some(chain.map_err(|error| unusable(&error))?), provider })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        if self.roots.iter().any(|root| root == presented) {
            // A server that signed for itself, and is trusted by name: there is no chain to follow.
            if self.asked == CertificateCheck::RootAndName {
                rustls::client::verify_server_name(&ParsedCertificate::try_from(presented)?, name)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        match chain.verify_server_cert(presented, between, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.asked == CertificateCheck::Root => Ok(ServerCertVerified::assertion()),
            outcome => outcome,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = EncryptedStream<S>;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Self::Error> {
        Ok(Handshake { connector: TlsConnector::from(self.0.clone()), name: ServerName::try_from(host.to_owned())? })
    }
}

/// A handshake that is yet to begin.
pub(super) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = EncryptedStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<EncryptedStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let Self { connector, name } = self;
        Box::pin(async move { Ok(EncryptedStream(connector.connect(name, stream).await?)) })
    }
}

/// An encrypted connection.
pub(super) struct EncryptedStream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for EncryptedStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for EncryptedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for EncryptedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
