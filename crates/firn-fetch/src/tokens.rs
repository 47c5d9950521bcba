//! Tokens of OAuth 2.0: the grant `client_credentials` (RFC 6749, section 4.4).

use std::fmt;
use std::time::Duration;

use firn_collect::config::{HttpClient, OAuth2, Url};
use firn_model::Secret;
use hyper::header::{ACCEPT, HeaderName};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::body::Bodies;
use crate::client::{Client, Content, Request};
use crate::credentials::{basic, secret};
use crate::{Connections, FetchError};

/// The tokens of a client.
pub(crate) struct Tokens {
    config: OAuth2,
    client: Client,
    /// One request for a token at a time; the others wait for its answer.
    state: Mutex<TokenState>,
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

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("config", &self.config).finish_non_exhaustive()
    }
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
    /// For a grant that is not supported, and as [`Client::new`].
    pub(crate) fn new(config: &OAuth2, bodies: &Bodies) -> Result<Tokens, FetchError> {
        if !matches!(config.grant_type.as_str(), "" | "client_credentials") {
            let shown = firn_model::excerpt(&config.grant_type);
            return Err(FetchError::Credentials(format!(
                "oauth2: grant_type {shown:?} is not supported; use client_credentials"
            )));
        }
        let client = HttpClient {
            tls_config: config.tls_config.clone(),
            proxy: config.proxy.clone(),
            ..HttpClient::default()
        };
        let client = Client::new(&client, bodies)?;
        Ok(Tokens { config: config.clone(), client, state: Mutex::new(TokenState::default()) })
    }

    /// The value of `Authorization`: of the known token, or of a new one.
    pub(crate) async fn authorization(&self, timeout: Duration) -> Result<String, FetchError> {
        let config = &self.config;
        let client_secret = secret(
            config.client_secret.expose(),
            &config.client_secret_file,
            "client_secret_file",
        )?;
        let client_secret = Secret::new(client_secret);
        let mut state = self.state.lock().await;
        if let Some(token) = &state.token
            && token.client_secret == client_secret
            && token.expires.is_none_or(|expires| Instant::now() < expires)
        {
            return Ok(token.authorization.clone());
        }
        let token = self.fetch(&mut state, client_secret, timeout).await?;
        let authorization = token.authorization.clone();
        state.token = Some(token);
        Ok(authorization)
    }

    async fn fetch(
        &self,
        state: &mut TokenState,
        client_secret: Secret,
        timeout: Duration,
    ) -> Result<Token, FetchError> {
        // As in Prometheus, a file with another text is loaded.
        Url::parse(self.config.token_url.as_str())
            .map_err(|error| FetchError::Credentials(format!("oauth2: token_url: {error}")))?;
        let asked = Instant::now();
        let mut answer = self.ask(state, &client_secret, timeout).await?;
        if answer.status != 200 && !state.in_form {
            // Servers that do not read the header expect the form.
            state.in_form = true;
            answer = self.ask(state, &client_secret, timeout).await?;
            state.in_form = answer.status == 200;
        }
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
            asked.checked_add(life)
        });
        let authorization = format!("{kind} {}", answer.access_token);
        if authorization.len() > TOKEN_BYTES_MAX {
            return Err(FetchError::Credentials(format!(
                "oauth2: the token has {} bytes, at most {TOKEN_BYTES_MAX} are sent",
                authorization.len()
            )));
        }
        Ok(Token { authorization, client_secret, expires })
    }

    async fn ask(
        &self,
        state: &mut TokenState,
        client_secret: &Secret,
        timeout: Duration,
    ) -> Result<crate::Response, FetchError> {
        let request = self.request(state.in_form, client_secret, timeout);
        // A client without tokens of its own: the recursion ends here.
        Box::pin(self.client.send(&request, &mut state.connections)).await
    }

    fn request(&self, in_form: bool, client_secret: &Secret, timeout: Duration) -> Request {
        let config = &self.config;
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        if !config.scopes.is_empty() {
            form.append_pair("scope", &config.scopes.join(" "));
        }
        let headers: Vec<(HeaderName, String)> = vec![(ACCEPT, "application/json".to_owned())];
        let mut authorization = None;
        if in_form {
            form.append_pair("client_id", &config.client_id);
            if !client_secret.expose().is_empty() {
                form.append_pair("client_secret", client_secret.expose());
            }
        } else {
            let escaped =
                |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let (id, secret) = (escaped(&config.client_id), escaped(client_secret.expose()));
            authorization = Some(Secret::new(basic(&id, &secret)));
        }
        for (name, value) in &config.endpoint_params {
            form.append_pair(name, value.expose());
        }
        Request {
            url: config.token_url.as_str().to_owned(),
            unix_socket: None,
            headers,
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
        }
    }
}
