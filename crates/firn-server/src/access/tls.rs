//! TLS from settings: certificates that a listener presents and demands.

use std::net::IpAddr;
use std::sync::Arc;

use firn_model::{Error, Result};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, NamedGroup, RootCertStore,
    ServerConfig, SignatureScheme,
};

use super::web_config::{ClientAuth, PemSource, TlsSettings};

/// The configuration of a listener that speaks `protocols` (ALPN; none for protocols without a
/// name), and warnings about names that are not known here.
///
/// # Errors
/// `Invalid`, naming the file or the key of the configuration.
pub(super) fn server_config(
    settings: &TlsSettings,
    protocols: &[&[u8]],
) -> Result<(Arc<ServerConfig>, Vec<String>)> {
    let mut warnings = Vec::new();
    let provider = Arc::new(provider(settings, &mut warnings)?);
    let refused = |what: &str, e: rustls::Error| {
        Error::invalid(format!("tls_server_config: {what}")).because(e)
    };
    let versions: Vec<_> = [(settings.versions.has_12, &TLS12), (settings.versions.has_13, &TLS13)]
        .into_iter()
        .filter_map(|(is_on, version)| is_on.then_some(version))
        .collect();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .map_err(|e| refused("no protocol is left", e))?;
    let builder = match client_verifier(settings, &provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let chain = certificates(&settings.certificate, "cert_file")?;
    let key = private_key(&settings.key, "key_file")?;
    let mut config = builder.with_single_cert(chain, key).map_err(|e| {
        refused("cert_file and key_file do not belong together or are not supported", e)
    })?;
    config.ignore_client_order = settings.prefers_server_order;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok((Arc::new(config), warnings))
}

/// The server's own certificate.
///
/// # Errors
/// `Invalid`, naming the file.
pub(super) fn leaf(settings: &TlsSettings) -> Result<Option<CertificateDer<'static>>> {
    Ok(certificates(&settings.certificate, "cert_file")?.into_iter().next())
}

/// Why clients refuse a certificate now for its dates alone, if they do.
pub(super) fn date_fault(certificate: &CertificateDer<'_>) -> Option<&'static str> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    // Dates are checked before the search for an authority, of which there is none.
    let usage = webpki::KeyUsage::server_auth();
    match certificate.verify_for_usage(&[], &[], &[], UnixTime::now(), usage, None, None) {
        Err(webpki::Error::CertExpired { .. }) => Some("has expired"),
        Err(webpki::Error::CertNotValidYet { .. }) => Some("is not valid yet"),
        _ => None,
    }
}

/// The cipher suites and curves that are named, in their order; all without names. `WebConfig`
/// knows all names.
fn provider(settings: &TlsSettings, warnings: &mut Vec<String>) -> Result<CryptoProvider> {
    let mut provider = ring::default_provider();
    if !settings.cipher_suites.is_empty() {
        let mut chosen = Vec::new();
        // As in Go, the names select among the suites of TLS 1.2 only.
        let is_13 = |suite: &rustls::SupportedCipherSuite| suite.tls13().is_some();
        chosen.extend(provider.cipher_suites.iter().copied().filter(is_13));
        for name in &settings.cipher_suites {
            let is_named = |suite: &&rustls::SupportedCipherSuite| {
                format!("{:?}", suite.suite()).replace("TLS13_", "TLS_") == *name
            };
            match provider.cipher_suites.iter().find(is_named) {
                Some(suite) if chosen.contains(suite) => {}
                Some(suite) => chosen.push(*suite),
                None => {
                    warnings.push(format!("cipher_suites: {name} is not supported and left out"));
                }
            }
        }
        let has_12 = chosen.iter().any(|suite| !is_13(suite));
        if !has_12 && !settings.versions.has_13 {
            return Err(Error::invalid(
                "tls_server_config.cipher_suites: none of the suites is supported with TLS 1.2",
            ));
        }
        provider.cipher_suites = chosen;
    }
    if !settings.curves.is_empty() {
        let mut chosen = Vec::new();
        for name in &settings.curves {
            let group = match name.as_str() {
                "X25519" => Some(NamedGroup::X25519),
                "CurveP256" => Some(NamedGroup::secp256r1),
                "CurveP384" => Some(NamedGroup::secp384r1),
                _ => None,
            };
            let known = provider.kx_groups.iter().find(|one| Some(one.name()) == group);
            match known {
                Some(known) => chosen.push(*known),
                None => warnings
                    .push(format!("curve_preferences: {name} is not supported and left out")),
            }
        }
        if chosen.is_empty() {
            return Err(Error::invalid(
                "tls_server_config.curve_preferences: expected X25519, CurveP256 or CurveP384",
            ));
        }
        provider.kx_groups = chosen;
    }
    Ok(provider)
}

fn client_verifier(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>> {
    let Some(authority) = &settings.client_ca else { return Ok(None) };
    if settings.client_auth == ClientAuth::None {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority, "client_ca_file")? {
        roots.add(certificate).map_err(|e| {
            Error::invalid("tls_server_config.client_ca_file: not a certificate").because(e)
        })?;
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = match settings.client_auth {
        ClientAuth::Required => builder,
        ClientAuth::IfGiven | ClientAuth::None => builder.allow_unauthenticated(),
    };
    let verifier = builder.build().map_err(|e| {
        Error::invalid("tls_server_config.client_ca_file: cannot be used").because(e)
    })?;
    Ok(Some(match settings.allowed_sans.is_empty() {
        true => verifier,
        false => Arc::new(NamedClients { verifier, names: settings.allowed_sans.clone() }),
    }))
}

/// Accepts certificates that the authority has signed for one of some names.
#[derive(Debug)]
struct NamedClients {
    verifier: Arc<dyn ClientCertVerifier>,
    names: Vec<String>,
}

impl NamedClients {
    fn is_allowed(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return false };
        let is_listed = |name: &str| self.names.iter().any(|allowed| allowed == name);
        let is_address = |name: &String| {
            let address: Option<IpAddr> = name.parse().ok();
            address.is_some_and(|address| {
                let name = ServerName::IpAddress(address.into());
                certificate.verify_is_valid_for_subject_name(&name).is_ok()
            })
        };
        certificate.valid_dns_names().any(is_listed)
            || certificate.valid_uri_names().any(is_listed)
            || self.names.iter().any(is_address)
    }
}

impl ClientCertVerifier for NamedClients {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        match self.is_allowed(end_entity) {
            true => Ok(verified),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

fn certificates(source: &PemSource, key: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(source.text.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Error::invalid(format!(
            "tls_server_config.{key}: expected certificates in PEM form in {source:?}"
        ))),
    }
}

fn private_key(source: &PemSource, key: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(source.text.as_bytes()).map_err(|_| {
        Error::invalid(format!(
            "tls_server_config.{key}: expected an unencrypted private key in PEM form in {source:?}"
        ))
    })
}
