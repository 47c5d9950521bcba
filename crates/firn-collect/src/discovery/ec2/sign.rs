//! Signatures of requests to AWS: Signature Version 4.

use firn_model::Secret;
use ring::{digest, hmac};

/// The keys of a signature.
#[derive(Clone, Debug, PartialEq)]
pub struct AwsCredentials {
    /// The name of the key.
    pub access_key: String,
    /// The key.
    pub secret_key: Secret,
    /// The token of temporary credentials; empty for others.
    pub session_token: Secret,
}

/// A `POST` of a form to a service of AWS.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedForm<'f> {
    pub(super) host: &'f str,
    pub(super) path: &'f str,
    pub(super) form: &'f str,
    pub(super) region: &'f str,
    /// As in `ec2`.
    pub(super) service: &'f str,
    /// UTC, as in `20150830T123600Z`.
    pub(super) time: &'f str,
}

/// The media type of a form.
pub(super) const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";

impl SignedForm<'_> {
    /// The value of `Authorization`. The request has the headers `content-type`, `host`,
    /// `x-amz-date` and, with a session, `x-amz-security-token`.
    pub(super) fn authorization(&self, credentials: &AwsCredentials) -> Secret {
        let SignedForm { host, path, form, region, service, time } = self;
        let token = credentials.session_token.expose();
        let mut headers = format!("content-type:{FORM}\nhost:{host}\nx-amz-date:{time}\n");
        let mut names = "content-type;host;x-amz-date".to_owned();
        if !token.is_empty() {
            headers += &format!("x-amz-security-token:{token}\n");
            names += ";x-amz-security-token";
        }
        let form_hash = sha256(form);
        let request = format!("POST\n{path}\n\n{headers}\n{names}\n{form_hash}");
        let day = time.get(..8).unwrap_or_default();
        let scope = format!("{day}/{region}/{service}/aws4_request");
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(&request));
        let first = format!("AWS4{}", credentials.secret_key.expose());
        let key = [*region, *service, "aws4_request"]
            .iter()
            .fold(hmac_sha256(first.as_bytes(), day), |key, part| hmac_sha256(key.as_ref(), part));
        let signature = hex(hmac_sha256(key.as_ref(), &to_sign).as_ref());
        let access_key = &credentials.access_key;
        Secret::new(format!(
            "AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, \
             Signature={signature}"
        ))
    }
}

fn hmac_sha256(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn sha256(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
