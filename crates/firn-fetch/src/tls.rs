//! TLS: certificates from files that may change between two requests.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use firn_collect::config::{TlsConfig, TlsVersion};
use firn_env::given_file::{self, PEM_BYTES_MAX};
use firn_model::{Budget, ErrorKind, Pool, Reservation};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::FetchError;

/// The TLS of a client. Built of its files again when one of them has changed.
pub(crate) struct TlsSource {
    config: TlsConfig,
    http2: bool,
    provider: Arc<CryptoProvider>,
    budget: Budget,
    built: Mutex<Option<Tls>>,
}

/// A configuration and the hash of the files that it was built of.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) hash: u64,
    /// Its memory.
    _held: Arc<Reservation>,
}

impl fmt::Debug for TlsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSource").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The texts of certificates and key.
struct Texts {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    held: Reservation,
}

/// Reserved for each byte of a text: the text, and the binary form that TLS keeps.
const BYTES_PER_TEXT_BYTE: u64 = 3;

impl TlsSource {
    /// # Errors
    /// For a file that is missing or not usable now, and for versions of TLS before 1.2.
    pub(crate) fn new(
        config: &TlsConfig,
        http2: bool,
        budget: &Budget,
    ) -> Result<TlsSource, FetchError> {
        let refused = |text: &str| Err(FetchError::Credentials(text.to_owned()));
        if !(config.ca_ref.is_empty() && config.cert_ref.is_empty() && config.key_ref.is_empty()) {
            return refused("tls_config: references to secret managers are not supported");
        }
        if matches!(config.max_version, TlsVersion::Tls10 | TlsVersion::Tls11) {
            return refused("tls_config: versions of TLS before 1.2 are not supported");
        }
        let provider = Arc::new(ring::default_provider());
        let (config, budget) = (config.clone(), budget.clone());
        let source = TlsSource { config, http2, provider, budget, built: Mutex::new(None) };
        // The authorities of the system are read at the first request that needs them.
        let texts = source.read()?;
        let has_certificates = texts.ca.is_some() || texts.cert.is_some();
        drop(texts);
        if has_certificates {
            source.current()?;
        }
        Ok(source)
    }

    /// The configuration of the files as they are now.
    pub(crate) fn current(&self) -> Result<Tls, FetchError> {
        let texts = self.read()?;
        let hash = texts.hash();
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = built.as_ref().filter(|built| built.hash == hash) {
            return Ok(built.clone());
        }
        let config = Arc::new(self.build(&texts)?);
        let tls = Tls { config, hash, _held: Arc::new(texts.held) };
        *built = Some(tls.clone());
        Ok(tls)
    }

    /// The name that the certificate of `host` must have.
    pub(crate) fn server_name(&self, host: &str) -> Result<ServerName<'static>, FetchError> {
        let name = match self.config.server_name.as_str() {
            "" => host.trim_start_matches('[').trim_end_matches(']'),
            name => name,
        };
        ServerName::try_from(name.to_owned())
            .map_err(|error| FetchError::transport("tls: server name", error))
    }

    fn read(&self) -> Result<Texts, FetchError> {
        let config = &self.config;
        let mut held = self.budget.empty(Pool::Requests);
        let mut read = |inline: &str, file: &str, name| text(inline, file, name, &mut held);
        Ok(Texts {
            ca: read(&config.ca, config.ca_file.as_str(), "ca_file")?,
            cert: read(&config.cert, config.cert_file.as_str(), "cert_file")?,
            key: read(config.key.expose(), config.key_file.as_str(), "key_file")?,
            held,
        })
    }

    fn build(&self, texts: &Texts) -> Result<ClientConfig, FetchError> {
        let failed = |error: rustls::Error| FetchError::Credentials(format!("tls_config: {error}"));
        let oldest = matches!(self.config.min_version, TlsVersion::Tls13);
        let newest = matches!(self.config.max_version, TlsVersion::Tls12);
        let versions: &[&rustls::SupportedProtocolVersion] = match (oldest, newest) {
            (true, _) => &[&rustls::version::TLS13],
            (false, true) => &[&rustls::version::TLS12],
            (false, false) => rustls::ALL_VERSIONS,
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(versions)
            .map_err(failed)?;
        let builder = if self.config.insecure_skip_verify {
            let verifier = Arc::new(NoVerifier(Arc::clone(&self.provider)));
            builder.dangerous().with_custom_certificate_verifier(verifier)
        } else {
            let roots = Arc::new(authorities(texts.ca.as_deref())?);
            let verifier =
                WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&self.provider))
                    .build()
                    .map_err(|error| FetchError::Credentials(format!("tls_config: {error}")))?;
            builder.with_webpki_verifier(verifier)
        };
        let mut config = match (&texts.cert, &texts.key) {
            (Some(cert), Some(key)) => {
                let chain = certificates(cert, "cert")?;
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| {
                    FetchError::Credentials(
                        "tls_config: key is not an unencrypted private key in PEM form".to_owned(),
                    )
                })?;
                builder.with_client_auth_cert(chain, key).map_err(failed)?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = match self.http2 {
            true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        };
        Ok(config)
    }
}

impl Texts {
    fn hash(&self) -> u64 {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        std::hash::Hash::hash(&(&self.ca, &self.cert, &self.key), &mut hasher);
        hasher.digest()
    }
}

/// A text of the configuration or of its file. Its memory is added to `held`.
fn text(
    inline: &str,
    file: &str,
    name: &str,
    held: &mut Reservation,
) -> Result<Option<String>, FetchError> {
    let mut reserve = |bytes: u64| held.grow(bytes.saturating_mul(BYTES_PER_TEXT_BYTE));
    let read = match (inline, file) {
        ("", "") => return Ok(None),
        ("", file) => {
            given_file::read_text_within(Path::new(file), name, PEM_BYTES_MAX, &mut reserve)
        }
        (inline, _) => reserve(inline.len() as u64).map(|()| inline.to_owned()),
    };
    read.map(Some).map_err(|error| match error.kind() {
        ErrorKind::Busy { .. } | ErrorKind::TooLarge => FetchError::Memory(error),
        _ => error.into(),
    })
}

fn authorities(ca: Option<&str>) -> Result<RootCertStore, FetchError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(text) => {
            for certificate in certificates(text, "ca")? {
                roots
                    .add(certificate)
                    .map_err(|error| FetchError::Credentials(format!("tls_config: ca: {error}")))?;
            }
        }
        None => {
            given_file::check_authorities()?;
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(FetchError::Credentials(
                    "the system has no certificates of authorities; set ca_file".to_owned(),
                ));
            }
        }
    }
    Ok(roots)
}

fn certificates(text: &str, name: &str) -> Result<Vec<CertificateDer<'static>>, FetchError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(FetchError::Credentials(format!(
            "tls_config: {name} has no certificates in PEM form"
        ))),
    }
}

/// `insecure_skip_verify`: any certificate is accepted; the server must own its key.
#[derive(Debug)]
struct NoVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_config::{client_config, write_file};

    /// Each request reads the files again.
    #[test]
    fn certificates_are_read_within_the_memory_and_a_long_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let signed = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
        let pem = signed.cert.pem();
        let keys = format!("tls_config: {{ca_file: '{}'}}", path.display());
        let config = client_config(&keys).tls_config;
        let f = |budget: &Budget| TlsSource::new(&config, false, budget);
        write_file(&path, &pem.repeat(100));
        let needed = 3 * 100 * pem.len() as u64;
        let budget = Budget::new(needed * 3 / 2);
        let source = f(&budget).unwrap();
        assert_eq!(budget.usage().used_bytes, needed);
        // A second reading waits for memory.
        assert!(matches!(source.current(), Err(FetchError::Memory(_))));
        drop(source);
        assert_eq!(budget.usage().used_bytes, 0);
        assert!(matches!(f(&Budget::new(needed - 1)), Err(FetchError::Memory(_))));
        write_file(&path, &" ".repeat(1 + PEM_BYTES_MAX as usize));
        let error = f(&Budget::unlimited()).unwrap_err().to_string();
        assert!(error.contains("ca_file"), "{error}");
    }
}
