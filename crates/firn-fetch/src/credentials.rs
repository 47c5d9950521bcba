//! Credentials and configured headers, from files that are read at every request.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use firn_collect::config::{FilePath, HttpClient};
use firn_env::given_file::{self, CREDENTIAL_BYTES_MAX};
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use crate::FetchError;

/// # Errors
/// If `config` refers to secrets that only a secret manager has.
pub(crate) fn check(config: &HttpClient) -> Result<(), FetchError> {
    let basic = config.basic_auth.iter().flat_map(|auth| [&auth.username_ref, &auth.password_ref]);
    let bearer = config.authorization.iter().map(|auth| &auth.credentials_ref);
    let oauth2 = config
        .oauth2
        .iter()
        .flat_map(|oauth2| [&oauth2.client_secret_ref, &oauth2.client_certificate_key_ref]);
    match basic.chain(bearer).chain(oauth2).all(String::is_empty) {
        true => Ok(()),
        false => Err(FetchError::Credentials(
            "references to secret managers are not supported".to_owned(),
        )),
    }
}

/// Adds the credentials and headers of `config`, without those of `oauth2`.
///
/// # Errors
/// For a file that cannot be read, and for a value that no header can have.
pub(crate) fn add(config: &HttpClient, headers: &mut HeaderMap) -> Result<(), FetchError> {
    if let Some(auth) = &config.basic_auth {
        let username = secret(&auth.username, &auth.username_file, "username_file")?;
        let password = secret(auth.password.expose(), &auth.password_file, "password_file")?;
        insert_secret(headers, &basic(&username, &password))?;
    }
    if let Some(auth) = &config.authorization {
        let credentials =
            secret(auth.credentials.expose(), &auth.credentials_file, "credentials_file")?;
        insert_secret(headers, &format!("{} {credentials}", auth.kind))?;
    }
    for (name, header) in config.http_headers.iter().flatten() {
        let name: HeaderName = name
            .parse()
            .map_err(|error| FetchError::Credentials(format!("http_headers: {error}")))?;
        for text in &header.values {
            headers.append(name.clone(), plain_value(text)?);
        }
        for secret in &header.secrets {
            headers.append(name.clone(), value(secret.expose())?);
        }
        for file in &header.files {
            headers.append(name.clone(), value(&secret("", file, "http_headers")?)?);
        }
    }
    Ok(())
}

/// A secret of the configuration or, trimmed, of its file.
pub(crate) fn secret(inline: &str, file: &FilePath, name: &str) -> Result<String, FetchError> {
    match file.is_empty() {
        true => Ok(inline.to_owned()),
        false => {
            let text =
                given_file::read_text_of(Path::new(file.as_str()), name, CREDENTIAL_BYTES_MAX)?;
            Ok(text.trim().to_owned())
        }
    }
}

/// The value of a header for basic authentication.
pub(crate) fn basic(username: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
}

/// The value of `Authorization` for the user and the password in an address.
pub(crate) fn of_address(uri: &Uri) -> Option<String> {
    let (user, _) = uri.authority()?.as_str().rsplit_once('@')?;
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    Some(basic(&unescape(name), &unescape(password)))
}

/// `%XX` as bytes.
pub(crate) fn unescape(text: &str) -> String {
    // Not a form: a plus sign is one.
    let text = text.replace('+', "%2B");
    form_urlencoded::parse(text.as_bytes()).next().map_or(text.clone(), |(name, _)| name.into())
}

/// Sets `Authorization`.
pub(crate) fn insert_secret(headers: &mut HeaderMap, text: &str) -> Result<(), FetchError> {
    headers.insert(AUTHORIZATION, value(text)?);
    Ok(())
}

/// The value of a header that is not shown.
pub(crate) fn value(text: &str) -> Result<HeaderValue, FetchError> {
    let mut value = plain_value(text)?;
    value.set_sensitive(true);
    Ok(value)
}

fn plain_value(text: &str) -> Result<HeaderValue, FetchError> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| {
        FetchError::Credentials("a secret or header has a character that is not allowed".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_config::{client_config, write_file};

    fn headers(config: &HttpClient) -> Result<HeaderMap, FetchError> {
        let mut headers = HeaderMap::new();
        add(config, &mut headers).map(|()| headers)
    }

    // Item 40: one kind of credentials; item 41: files are read at every request and trimmed, and
    // a missing one fails the request.
    #[test]
    fn secrets_of_files_are_read_at_every_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let keys = format!("authorization: {{credentials_file: '{}'}}", path.display());
        let config = client_config(&keys);
        let error = headers(&config).unwrap_err().to_string();
        assert!(error.contains("credentials_file"), "{error}");
        for token in ["one", "two"] {
            write_file(&path, &format!(" {token}\n"));
            let headers = headers(&config).unwrap();
            assert_eq!(headers[AUTHORIZATION], format!("Bearer {token}"));
            assert!(!format!("{headers:?}").contains(token));
        }
        write_file(&path, "a\nb");
        assert!(headers(&config).is_err());
    }

    #[test]
    fn basic_credentials_and_headers_are_added() {
        let config = client_config(
            "basic_auth: {username: u, password: p}, \
             http_headers: {X-Scope: {values: [a, b], secrets: [c]}}",
        );
        let headers = headers(&config).unwrap();
        assert_eq!(headers[AUTHORIZATION], "Basic dTpw");
        let scopes: Vec<_> = headers.get_all("x-scope").iter().collect();
        assert_eq!(scopes, ["a", "b", "c"]);
    }
}
