//! `alerting`: Alertmanagers and the labels of alerts.

use super::discovery::Discoveries;
use super::{HttpClient, Millis, RuleList, SigV4};
use crate::relabel::NameScheme;
use firn_yaml::{Checked, Field, Items, section, words};

words! {
    /// A version of Alertmanager's interface.
    pub enum AlertmanagerVersion: "config.AlertmanagerAPIVersion" {
        V2 = "v2",
    }
    fold |text| text.to_owned();
    unknown |text| format!(
        "expected Alertmanager api version to be one of [v2] but got {text}"
    );
}

section! {
    /// The Alertmanagers.
    pub struct Alerting: "config.plain" {
        alert_relabel_configs: RuleList = "alert_relabel_configs" omit,
        alertmanagers: Items<Alertmanagers> = "alertmanagers" omit,
    }
}

section! {
    /// A set of Alertmanagers with the same settings.
    pub struct Alertmanagers: "config.AlertmanagerConfig" {
        sigv4: Option<SigV4> = "sigv4" omit,
        scheme: String = "scheme" omit,
        path_prefix: String = "path_prefix" omit,
        timeout: Millis = "timeout" omit,
        api_version: AlertmanagerVersion = "api_version",
        relabel_configs: RuleList = "relabel_configs" omit,
        alert_relabel_configs: RuleList = "alert_relabel_configs" omit,
    }
    inline { http: HttpClient, discoveries: Discoveries, }
}

impl Checked for Alerting {
    fn start(&mut self) {
        *self = Alerting::zero();
    }

    fn check(&mut self) -> Result<(), String> {
        if self.alert_relabel_configs.has_null() {
            return Err("empty or null alert relabeling rule".to_owned());
        }
        if self.alertmanagers.has_null() {
            return Err("empty or null Alertmanager config section".to_owned());
        }
        Ok(())
    }
}

impl Alerting {
    pub(super) fn compile(&mut self, scheme: NameScheme) -> Result<(), String> {
        self.alert_relabel_configs.compile(scheme)?;
        for alertmanagers in self.alertmanagers.items_mut() {
            alertmanagers.alert_relabel_configs.compile(scheme)?;
            alertmanagers.relabel_configs.compile(scheme)?;
        }
        Ok(())
    }
}

impl Checked for Alertmanagers {
    fn start(&mut self) {
        *self = Alertmanagers {
            scheme: "http".to_owned(),
            timeout: Millis::seconds(10),
            api_version: AlertmanagerVersion::V2,
            http: HttpClient::default(),
            ..Alertmanagers::zero()
        };
    }

    fn check(&mut self) -> Result<(), String> {
        self.discoveries.check_nulls()?;
        self.http.check()?;
        let http = &self.http;
        let has_auth =
            http.basic_auth.is_some() || http.authorization.is_some() || http.oauth2.is_some();
        let text = if has_auth && self.sigv4.is_some() {
            "at most one of basic_auth, authorization, oauth2, & sigv4 must be configured"
        } else if self.relabel_configs.has_null() {
            "empty or null Alertmanager target relabeling rule"
        } else if self.alert_relabel_configs.has_null() {
            "empty or null Alertmanager alert relabeling rule"
        } else if self.relabel_configs.is_empty() {
            return self.discoveries.check_static_targets();
        } else {
            return Ok(());
        };
        Err(text.to_owned())
    }
}
