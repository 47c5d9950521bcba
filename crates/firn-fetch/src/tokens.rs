//! Tokens of OAuth 2.0: the grant `client_credentials` (RFC 6749, section 4.4).

use std::time::Duration;

use firn_collect::config::{OAuth2, Url};
use firn_model::Secret;
use hyper::header::ACCEPT;
use serde::Deserialize;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::FetchError;
use crate::connect::Connections;
use crate::credentials::{basic, secret};
use crate::message::{Content, Request, Response};

/// The tokens of a client.
pub(crate) struct Tokens {
    config: OAuth2,
    /// One request for a token at a time; the others wait for its answer.
    state: Mutex<TokenState>,
}

/// The turn to use the known token or to request one.
pub(crate) struct TokenTurn<'t> {
    config: &'t OAuth2,
    client_secret: Secret,
    state: MutexGuard<'t, TokenState>,
    asked: Instant,
}

#[derive(Default)]
struct TokenState {
    connections: Connections,
    token: Option<Token>,
    /// The server expects the client's name and secret in the form.
    in_form: bool,
}

struct Token {
    authorization: String,
    /// The secret of the request for it.
    client_secret: Secret,
    /// `None` if it never expires.
    expires: Option<Instant>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    #[serde(default)]
    token_type: String,
    #[serde(default)]
    expires_in: serde_json::Value,
}

// A token is not used in the last seconds of its life.
const EXPIRES_EARLY: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 1 << 20;
// Every request has a copy of the token. Servers read heads of 8 to 64 KiB.
const TOKEN_BYTES_MAX: usize = 16 << 10;

impl Tokens {
    /// # Errors
    /// For a grant that is not supported.
    pub(crate) fn new(config: &OAuth2) -> Result<Tokens, FetchError> {
        if !matches!(config.grant_type.as_str(), "" | "client_credentials") {
            let shown = firn_model::excerpt(&config.grant_type);
            return Err(FetchError::Credentials(format!(
                "oauth2: grant_type {shown:?} is not supported; use client_credentials"
            )));
        }
        Ok(Tokens { config: config.clone(), state: Mutex::new(TokenState::default()) })
    }

    /// Waits for the turn, with the secret of the client as it is now.
    ///
    /// # Errors
    /// If the secret cannot be read.
    pub(crate) async fn turn(&self) -> Result<TokenTurn<'_>, FetchError> {
        let config = &self.config;
        let client_secret = secret(
            config.client_secret.expose(),
            &config.client_secret_file,
            "client_secret_file",
        )?;
        let client_secret = Secret::new(client_secret);
        let state = self.state.lock().await;
        Ok(TokenTurn { config, client_secret, state, asked: Instant::now() })
    }
}

impl TokenTurn<'_> {
    /// The value of `Authorization` of the known token, if it is still good.
    pub(crate) fn known(&self) -> Option<String> {
        let token = self.state.token.as_ref()?;
        let is_good = token.client_secret == self.client_secret
            && token.expires.is_none_or(|expires| Instant::now() < expires);
        is_good.then(|| token.authorization.clone())
    }

    /// The connections that earlier requests for tokens left open.
    pub(crate) fn connections(&mut self) -> &mut Connections {
        &mut self.state.connections
    }

    /// The request for a token.
    ///
    /// # Errors
    /// For an address that is none: as in Prometheus, such a file is loaded.
    pub(crate) fn request(&self, timeout: Duration) -> Result<Request, FetchError> {
        let (config, client_secret) = (self.config, self.client_secret.expose());
        Url::parse(config.token_url.as_str())
            .map_err(|error| FetchError::Credentials(format!("oauth2: token_url: {error}")))?;
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        if !config.scopes.is_empty() {
            form.append_pair("scope", &config.scopes.join(" "));
        }
        let mut authorization = None;
        if self.state.in_form {
            form.append_pair("client_id", &config.client_id);
            if !client_secret.is_empty() {
                form.append_pair("client_secret", client_secret);
            }
        } else {
            let escaped =
                |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let (id, secret) = (escaped(&config.client_id), escaped(client_secret));
            authorization = Some(Secret::new(basic(&id, &secret)));
        }
        for (name, value) in &config.endpoint_params {
            form.append_pair(name, value.expose());
        }
        Ok(Request {
            url: config.token_url.as_str().to_owned(),
            unix_socket: None,
            headers: vec![(ACCEPT, "application/json".to_owned())],
            authorization,
            secrets: Vec::new(),
            content: Some(Content {
                is_put: false,
                is_secret: true,
                media_type: "application/x-www-form-urlencoded".to_owned(),
                bytes: form.finish().into(),
            }),
            body_bytes_max: ANSWER_BYTES_MAX,
            timeout,
        })
    }

    /// Whether a refused request is to be sent once more, with the client's name and secret in the
    /// form: some servers do not read the header.
    pub(crate) fn tries_form(&mut self, answer: &Response) -> bool {
        if answer.status == 200 {
            return false;
        }
        self.state.in_form = !self.state.in_form;
        self.state.in_form
    }

    /// Keeps the token of an answer. Returns the value of `Authorization`.
    ///
    /// # Errors
    /// For an answer without a usable token.
    pub(crate) fn take(&mut self, answer: &Response) -> Result<String, FetchError> {
        if answer.status != 200 {
            let status = answer.status_text();
            return Err(FetchError::Credentials(format!("oauth2: cannot fetch token: {status}")));
        }
        let answer: TokenAnswer = firn_collect::json::from_json(&answer.body).map_err(|_| {
            FetchError::Credentials("oauth2: cannot parse the answer with the token".to_owned())
        })?;
        if answer.access_token.is_empty() {
            let text = "oauth2: server response missing access_token".to_owned();
            return Err(FetchError::Credentials(text));
        }
        let kind = match answer.token_type.to_ascii_lowercase().as_str() {
            "" | "bearer" => "Bearer",
            "mac" => "MAC",
            "basic" => "Basic",
            _ => answer.token_type.as_str(),
        };
        let seconds = match &answer.expires_in {
            serde_json::Value::Number(number) => number.as_u64(),
            serde_json::Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let expires = seconds.filter(|seconds| *seconds > 0).and_then(|seconds| {
            let life = Duration::from_secs(seconds).saturating_sub(EXPIRES_EARLY);
            self.asked.checked_add(life)
        });
        let authorization = format!("{kind} {}", answer.access_token);
        if authorization.len() > TOKEN_BYTES_MAX {
            return Err(FetchError::Credentials(format!(
                "oauth2: the token has {} bytes, at most {TOKEN_BYTES_MAX} are sent",
                authorization.len()
            )));
        }
        let client_secret = self.client_secret.clone();
        let token = Token { authorization: authorization.clone(), client_secret, expires };
        self.state.token = Some(token);
        Ok(authorization)
    }
}
