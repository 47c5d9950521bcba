//! Objects of Kubernetes.

use super::super::{FilePath, HttpClient, Url};
use super::{checked, client, refuse};
use firn_yaml::quoted;
use firn_yaml::{Checked, Field, section, words};

words! {
    /// The kind of objects that become targets.
    pub enum KubernetesRole: "kubernetes.Role" {
        Node = "node",
        Pod = "pod",
        Service = "service",
        Endpoints = "endpoints",
        EndpointSlice = "endpointslice",
        Ingress = "ingress",
    }
    fold |text| text.to_owned();
    unknown |text| format!("unknown Kubernetes SD role {}", quoted(text.as_bytes()));
}

impl KubernetesRole {
    /// The roles whose objects a discovery of this role lists.
    fn selector_roles(self) -> &'static [KubernetesRole] {
        use KubernetesRole::{EndpointSlice, Endpoints, Ingress, Node, Pod, Service};
        match self {
            Pod => &[Pod, Node],
            Service => &[Service],
            EndpointSlice => &[Pod, Service, EndpointSlice],
            Endpoints => &[Pod, Service, Endpoints],
            Node => &[Node],
            Ingress => &[Ingress],
            KubernetesRole::Unset => &[],
        }
    }
}

section! {
    /// Objects of a cluster: the own one, `api_server`, or that of a file.
    pub struct KubernetesDiscovery: "kubernetes.plain" {
        api_server: Option<Url> = "api_server" omit,
        role: KubernetesRole = "role",
        kubeconfig_file: FilePath = "kubeconfig_file",
        namespaces: NamespaceSelection = "namespaces" omit,
        selectors: Vec<Selector> = "selectors" omit,
        attach_metadata: AttachMetadata = "attach_metadata" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Namespaces; all if none is named.
    pub struct NamespaceSelection: "kubernetes.plain" {
        own_namespace: bool = "own_namespace",
        names: Vec<String> = "names",
    }
}

section! {
    /// A restriction of the listed objects of a role.
    pub struct Selector: "kubernetes.SelectorConfig" {
        role: KubernetesRole = "role" omit,
        label: String = "label" omit,
        field: String = "field" omit,
    }
}

section! {
    /// Labels of related objects.
    pub struct AttachMetadata: "kubernetes.AttachMetadataConfig" {
        node: bool = "node",
        namespace: bool = "namespace",
        deployment: bool = "deployment",
        job: bool = "job",
        cronjob: bool = "cronjob",
    }
}

impl Checked for NamespaceSelection {
    fn start(&mut self) {
        *self = NamespaceSelection::zero();
    }
}

impl Checked for Selector {}
impl Checked for AttachMetadata {}

checked!(KubernetesDiscovery { http = client(); } |kubernetes| {
    refuse(
        kubernetes.role == KubernetesRole::Unset,
        "role missing (one of: pod, service, endpoints, endpointslice, node, ingress)",
    )?;
    kubernetes.http.check()?;
    let has_server = kubernetes.api_server.is_some();
    let has_file = !kubernetes.kubeconfig_file.is_empty();
    let has_client = kubernetes.http != client();
    let has_own_namespace = kubernetes.namespaces.own_namespace;
    refuse(
        has_server && has_file,
        "cannot use 'kubeconfig_file' and 'api_server' simultaneously",
    )?;
    refuse(
        has_file && has_client,
        "cannot use a custom HTTP client configuration together with 'kubeconfig_file'",
    )?;
    refuse(
        !has_server && has_client,
        "to use custom HTTP client configuration please provide the 'api_server' URL explicitly",
    )?;
    refuse(
        has_server && has_own_namespace,
        "cannot use 'api_server' and 'namespaces.own_namespace' simultaneously",
    )?;
    refuse(
        has_file && has_own_namespace,
        "cannot use 'kubeconfig_file' and 'namespaces.own_namespace' simultaneously",
    )?;
    let allowed = kubernetes.role.selector_roles();
    let mut seen = Vec::new();
    for selector in &kubernetes.selectors {
        if seen.contains(&selector.role) {
            return Err(format!("duplicated selector role: {}", selector.role));
        }
        seen.push(selector.role);
        if !allowed.contains(&selector.role) {
            let allowed: Vec<&str> = allowed.iter().map(|role| role.as_str()).collect();
            let (role, allowed) = (kubernetes.role, allowed.join(", "));
            return Err(format!("{role} role supports only {allowed} selectors"));
        }
        check_field_selector(&selector.field)?;
        check_label_selector(&selector.label)?;
    }
    Ok(())
});

/// Terms such as `a=b`, `a==b` and `a!=b` with commas between them.
fn check_field_selector(selector: &str) -> Result<(), String> {
    let mut terms = vec![String::new()];
    let mut is_escaped = false;
    for c in selector.chars() {
        if c == ',' && !is_escaped {
            terms.push(String::new());
            continue;
        }
        is_escaped = c == '\\' && !is_escaped;
        if let Some(term) = terms.last_mut() {
            term.push(c);
        }
    }
    terms.sort_unstable();
    for term in terms.iter().filter(|term| !term.is_empty()) {
        let operator = term.char_indices().find_map(|(at, _)| {
            let rest = term.get(at..)?;
            ["!=", "==", "="].iter().find_map(|operator| rest.strip_prefix(operator))
        });
        let Some(value) = operator else {
            return Err(format!("invalid selector: '{selector}'; can't understand '{term}'"));
        };
        let mut chars = value.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some('\\' | ',' | '=') => {}
                    other => {
                        let sequence: String = std::iter::once('\\').chain(other).collect();
                        return Err(format!(
                            "invalid field selector: invalid escape sequence: {sequence}"
                        ));
                    }
                },
                ',' | '=' => {
                    return Err(format!(
                        "invalid field selector: unescaped character in value: {c}"
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Requirements with commas between them: `a`, `!a`, `a=b`, `a!=b`, `a in (b, c)`, `a notin (b)`,
/// `a > 1`.
fn check_label_selector(selector: &str) -> Result<(), String> {
    let tokens = label_tokens(selector);
    let mut rest = tokens.as_slice();
    while !rest.is_empty() {
        rest = match rest {
            ["!", key, rest @ ..] if is_key(key) => rest,
            [key, "in" | "notin", "(", rest @ ..] if is_key(key) => {
                let end = rest.iter().position(|token| *token == ")");
                let (values, behind) = match end {
                    Some(end) => rest.split_at(end),
                    None => return Err(unparsable(selector, rest.last())),
                };
                let is_list = !values.is_empty()
                    && values.split(|token| *token == ",").all(|value| match value {
                        [] => true,
                        [value] => is_value(value),
                        _ => false,
                    });
                if !is_list {
                    return Err(unparsable(selector, values.first()));
                }
                behind.get(1..).unwrap_or_default()
            }
            [key, "=" | "==" | "!=", rest @ ..] if is_key(key) => match rest {
                [",", ..] | [] => rest,
                [value, rest @ ..] if is_value(value) => rest,
                _ => return Err(unparsable(selector, rest.first())),
            },
            [key, ">" | "<", value, rest @ ..]
                if is_key(key) && value.bytes().all(|c| c.is_ascii_digit()) =>
            {
                rest
            }
            [key, rest @ ..] if is_key(key) => rest,
            _ => return Err(unparsable(selector, rest.first())),
        };
        rest = match rest {
            [] => rest,
            [",", rest @ ..] if !rest.is_empty() => rest,
            _ => return Err(unparsable(selector, rest.first())),
        };
    }
    Ok(())
}

fn unparsable(selector: &str, token: Option<&&str>) -> String {
    let token = token.copied().unwrap_or_default();
    format!("unable to parse requirement: found '{token}' in '{selector}'")
}

fn label_tokens(selector: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = selector.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = match rest {
            _ if rest.starts_with("==") || rest.starts_with("!=") => 2,
            _ if "!=(),<>".contains(first) => 1,
            _ => rest
                .find(|c: char| c.is_whitespace() || "!=(),<>".contains(c))
                .unwrap_or(rest.len()),
        };
        let (token, behind) = rest.split_at_checked(len).unwrap_or((rest, ""));
        tokens.push(token);
        rest = behind.trim_start();
    }
    tokens
}

/// A name of at most 63 characters, maybe with the name of a domain and a slash before it.
fn is_key(key: &str) -> bool {
    let (domain, name) = match key.rsplit_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    let is_domain = |domain: &str| {
        domain.len() <= 253
            && domain.split('.').all(|part| {
                is_qualified(part)
                    && part
                        .chars()
                        .all(|c| c == '-' || c.is_ascii_lowercase() || c.is_ascii_digit())
            })
    };
    name.len() <= 63 && is_qualified(name) && domain.is_none_or(is_domain)
}

fn is_value(value: &str) -> bool {
    value.len() <= 63 && is_qualified(value)
}

/// Letters and digits, with `-`, `_` and `.` between them.
fn is_qualified(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_checked() {
        for selector in [
            "",
            "a",
            "!a",
            "a=b",
            "a==b",
            "a!=b",
            "a in (b, c),d",
            "x.io/a notin (b)",
            "a > 1",
            "a=",
            "a,b",
            "a in (b,)",
        ] {
            assert_eq!(check_label_selector(selector), Ok(()), "{selector}");
        }
        for selector in ["a b", "=a", "a in b", "a in (", "a=b=c", "-a", "a,", "a > x", "a in ()"] {
            assert!(check_label_selector(selector).is_err(), "{selector}");
        }
        for selector in ["", "a=b", "a!=b,c==d", r"a=b\,c"] {
            assert_eq!(check_field_selector(selector), Ok(()), "{selector}");
        }
        for selector in ["a", "a=b=c", r"a=\x", r"a=b\"] {
            assert!(check_field_selector(selector).is_err(), "{selector}");
        }
    }
}
