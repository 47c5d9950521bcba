//! Targets of EC2: the requests to AWS and the meaning of their answers.

mod credentials;
mod sign;
mod xml;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use firn_model::{Budget, Error, Pool, Reservation, Result, Secret, excerpt, excerpt_within};

use super::label_set_bytes;
use super::names::{check_repeated, escaped, host_port, label_name};
use crate::config::LabelSet;
use crate::config::discovery::Ec2Discovery;
use crate::pool::DiscoveredGroup;
use crate::targets::ADDRESS;
pub use credentials::{
    CredentialSource, known_region, role_credentials, role_request, session_credentials,
    web_identity_request,
};
pub use sign::AwsCredentials;
use sign::{FORM, SignedForm};
use xml::Element;

/// The identifiers of the zones of a region, by their names.
pub type ZoneIds = BTreeMap<String, String>;

/// The instances of a region.
#[derive(Clone, Debug)]
pub struct Ec2Targets {
    config: Ec2Discovery,
    region: String,
}

/// A request to AWS: a `POST` of a form.
#[derive(Clone, Debug)]
pub struct AwsRequest {
    /// The address.
    pub url: String,
    /// Names and values of headers beside `content-type` and `host`.
    pub headers: Vec<(&'static str, Secret)>,
    /// `Authorization`; `None` for requests without a signature.
    pub authorization: Option<Secret>,
    /// The media type of the form.
    pub media_type: &'static str,
    /// The form.
    pub form: String,
}

/// The service of the request.
#[derive(Clone, Copy, Debug)]
struct AwsService<'s> {
    /// As in `ec2`.
    name: &'s str,
    endpoint: &'s str,
    region: &'s str,
}

// A version of the API that all regions have.
const API_VERSION: &str = "2016-11-15";
const INSTANCES_MAX: usize = 1_000;
// A growing list has up to twice its length.
const SLOT_BYTES: usize = 2 * size_of::<LabelSet>();
// Regions have some ten zones.
const ZONES_MAX: usize = 1_000;
// Instances have at most 15 interfaces, some types a few more.
const DEVICES_MAX: usize = 256;

impl Ec2Targets {
    /// The instances of `config` in `region`, which is that of the configuration if it has one.
    pub fn new(config: Ec2Discovery, region: String) -> Ec2Targets {
        Ec2Targets { config, region }
    }

    /// The request for the names and identifiers of zones, signed at `time` as in
    /// `20150830T123600Z`.
    pub fn zones_request(&self, credentials: &AwsCredentials, time: &str) -> AwsRequest {
        self.request(&[("Action".to_owned(), "DescribeAvailabilityZones")], credentials, time)
    }

    /// The request for a page of instances. `next` is the token of the previous page.
    pub fn instances_request(
        &self,
        next: &str,
        credentials: &AwsCredentials,
        time: &str,
    ) -> AwsRequest {
        let instances_max = INSTANCES_MAX.to_string();
        let mut parameters = vec![
            ("Action".to_owned(), "DescribeInstances"),
            ("MaxResults".to_owned(), instances_max.as_str()),
        ];
        for (filter, number) in self.config.filters.iter().zip(1..) {
            parameters.push((format!("Filter.{number}.Name"), &filter.name));
            for (value, value_number) in filter.values.iter().zip(1..) {
                parameters.push((format!("Filter.{number}.Value.{value_number}"), value));
            }
        }
        if !next.is_empty() {
            parameters.push(("NextToken".to_owned(), next));
        }
        self.request(&parameters, credentials, time)
    }

    fn request(
        &self,
        parameters: &[(String, &str)],
        credentials: &AwsCredentials,
        time: &str,
    ) -> AwsRequest {
        let (name, endpoint, region) = ("ec2", self.config.endpoint.as_str(), &self.region);
        let service = AwsService { name, endpoint, region };
        service.request(API_VERSION, parameters, Some(credentials), time)
    }

    /// The zones of an answer.
    ///
    /// # Errors
    /// `Invalid` with the reason of a refusal, and for a body that is no answer; `Busy` without
    /// memory.
    pub fn zones(status: &str, body: &[u8], budget: &Budget) -> Result<ZoneIds> {
        let (answer, _held) = document(status, body, budget)?;
        let zones = answer.items("availabilityZoneInfo");
        let zone = |zone: &Element| {
            Some((zone.text(&["zoneName"])?.to_owned(), zone.text(&["zoneId"])?.to_owned()))
        };
        Ok(zones.filter_map(zone).take(ZONES_MAX).collect())
    }

    /// Adds the instances of an answer to `group`, and their memory to `held`. Returns the token of
    /// the next page, which is empty after the last one.
    ///
    /// # Errors
    /// As [`Ec2Targets::zones`].
    pub fn add_page(
        &self,
        group: &mut DiscoveredGroup,
        held: &mut Reservation,
        zones: &ZoneIds,
        (status, body): (&str, &[u8]),
        budget: &Budget,
    ) -> Result<String> {
        let (answer, _held) = document(status, body, budget)?;
        for reservation in answer.items("reservationSet") {
            let owner = reservation.text(&["ownerId"]);
            for instance in reservation.items("instancesSet") {
                let Some(target) = self.target(instance, owner, zones) else { continue };
                let bytes = label_set_bytes(&target).saturating_add(SLOT_BYTES);
                held.grow(bytes as u64)?;
                group.targets.push(target);
            }
        }
        let next = answer.text(&["nextToken"]).unwrap_or_default();
        check_repeated("the token of the next page", next)?;
        Ok(next.to_owned())
    }

    /// No instances yet, with the memory that they take.
    pub fn group(budget: &Budget) -> (DiscoveredGroup, Reservation) {
        (DiscoveredGroup::default(), budget.empty(Pool::Cache))
    }

    /// `None` for an instance without an address.
    fn target(&self, instance: &Element, owner: Option<&str>, zones: &ZoneIds) -> Option<LabelSet> {
        let mut labels: Vec<(String, String)> = Vec::new();
        let mut set = |name: &str, value: &str| {
            labels.push((format!("__meta_ec2_{name}"), value.to_owned()));
        };
        let addresses = Ipv6Addresses::of(instance);
        let private_ip = instance.text(&["privateIpAddress"]);
        let address = private_ip.or(addresses.default.as_deref())?.to_owned();
        set("region", &self.region);
        for (name, path) in [
            ("instance_id", &["instanceId"][..]),
            ("private_ip", &["privateIpAddress"]),
            ("private_dns_name", &["privateDnsName"]),
            ("platform", &["platform"]),
            ("public_ip", &["ipAddress"]),
            ("ami", &["imageId"]),
            ("instance_state", &["instanceState", "name"]),
            ("instance_type", &["instanceType"]),
            ("instance_lifecycle", &["instanceLifecycle"]),
            ("architecture", &["architecture"]),
            ("vpc_id", &["vpcId"]),
            ("availability_zone", &["placement", "availabilityZone"]),
        ] {
            if let Some(value) = instance.text(path) {
                set(name, value);
            }
        }
        if let Some(owner) = owner {
            set("owner_id", owner);
        }
        if let Some(name) = instance.text(&["dnsName"])
            && instance.text(&["ipAddress"]).is_some()
        {
            set("public_dns_name", name);
        }
        let zone = instance.text(&["placement", "availabilityZone"]);
        if let Some(id) = zone.and_then(|zone| zones.get(zone)) {
            set("availability_zone_id", id);
        }
        if instance.text(&["vpcId"]).is_some() {
            if let Some(subnet) = instance.text(&["subnetId"]) {
                set("primary_subnet_id", subnet);
            }
            let interfaces = instance.items("networkInterfaceSet");
            let mut known: HashSet<&str> = HashSet::new();
            let subnets = interfaces.filter_map(|interface| interface.text(&["subnetId"]));
            let subnets: Vec<&str> = subnets.filter(|subnet| known.insert(subnet)).collect();
            set("subnet_id", &list(&subnets));
        }
        addresses.set_labels(&mut set);
        for tag in instance.items("tagSet") {
            // A tag may have an empty value.
            if let (Some(key), Some(_)) = (tag.text(&["key"]), tag.at(&["value"])) {
                let key = label_name(key);
                set(&format!("tag_{key}"), tag.text(&["value"]).unwrap_or_default());
            }
        }
        labels.push((ADDRESS.to_owned(), host_port(&address, self.config.port)));
        Some(labels.into_iter().collect())
    }
}

/// The IPv6 addresses of an instance.
struct Ipv6Addresses {
    all: Vec<String>,
    /// By the number of their device; empty for devices without one.
    primary: Vec<String>,
    default: Option<String>,
}

impl Ipv6Addresses {
    fn of(instance: &Element) -> Ipv6Addresses {
        let (mut all, mut primary) = (Vec::new(), Vec::new());
        let has_network = instance.text(&["vpcId"]).is_some();
        let interfaces = instance.items("networkInterfaceSet");
        for interface in interfaces.filter(|one| has_network && one.text(&["subnetId"]).is_some()) {
            let device = interface.text(&["attachment", "deviceIndex"]);
            let device: Option<usize> = device.and_then(|device| device.parse().ok());
            let device = device.filter(|device| *device < DEVICES_MAX);
            for address in interface.items("ipv6AddressesSet") {
                let Some(text) = address.text(&["ipv6Address"]) else { continue };
                all.push(text.to_owned());
                let is_primary = address.text(&["isPrimaryIpv6"]) == Some("true");
                if let Some(device) = device.filter(|_| is_primary) {
                    if primary.len() <= device {
                        primary.resize(device.saturating_add(1), String::new());
                    }
                    if let Some(slot) = primary.get_mut(device) {
                        text.clone_into(slot);
                    }
                }
            }
        }
        let default = primary.iter().chain(&all).find(|text| !text.is_empty()).cloned();
        Ipv6Addresses { all, primary, default }
    }

    fn set_labels(&self, set: &mut impl FnMut(&str, &str)) {
        if let Some(default) = &self.default {
            set("default_ipv6_address", default);
        }
        for (name, texts) in
            [("ipv6_addresses", &self.all), ("primary_ipv6_addresses", &self.primary)]
        {
            if !texts.is_empty() {
                set(name, &list(texts));
            }
        }
    }
}

/// Texts with commas around them.
fn list<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    format!(",{},", texts.join(","))
}

impl AwsService<'_> {
    fn request(
        &self,
        version: &str,
        parameters: &[(String, &str)],
        credentials: Option<&AwsCredentials>,
        time: &str,
    ) -> AwsRequest {
        let version = ("Version".to_owned(), version);
        let parameters = parameters.iter().chain([&version]);
        let form: Vec<String> =
            parameters.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let form = form.join("&");
        let url = self.url();
        let behind = url.split_once("://").map_or("", |(_, behind)| behind);
        let (host, path) = behind.find('/').map_or((behind, "/"), |at| behind.split_at(at));
        let mut headers = Vec::new();
        let authorization = credentials.map(|credentials| {
            headers.push(("x-amz-date", Secret::new(time)));
            if !credentials.session_token.expose().is_empty() {
                headers.push(("x-amz-security-token", credentials.session_token.clone()));
            }
            let (region, service) = (self.region, self.name);
            SignedForm { host, path, form: &form, region, service, time }.authorization(credentials)
        });
        AwsRequest { headers, authorization, media_type: FORM, form, url }
    }

    fn url(&self) -> String {
        let AwsService { name, endpoint, region } = self;
        let url = match *endpoint {
            "" => {
                let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
                format!("https://{name}.{region}.amazonaws.com{suffix}")
            }
            endpoint if endpoint.contains("://") => (*endpoint).to_owned(),
            endpoint => format!("https://{endpoint}"),
        };
        let host = url.split_once("://").map_or("", |(_, behind)| behind);
        if host.contains('/') { url } else { format!("{url}/") }
    }
}

/// The document of an answer.
fn document(status: &str, body: &[u8], budget: &Budget) -> Result<(Element, Reservation)> {
    let parsed = Element::parse(body, budget);
    if status == "200 OK" {
        return parsed;
    }
    let status = excerpt_within(status, 100);
    // EC2 and STS wrap their errors in different elements.
    let reason = parsed.ok().and_then(|(root, _held)| {
        let error = root.at(&["Errors", "Error"]).or_else(|| root.at(&["Error"]))?;
        let code = error.text(&["Code"])?;
        Some(format!("{code}: {}", error.text(&["Message"]).unwrap_or_default()))
    });
    Err(Error::invalid(match reason {
        Some(reason) => format!("HTTP status {status}: {}", excerpt(&reason)),
        None => format!("HTTP status {status}"),
    }))
}

/// The address of an instance's metadata service. IPv6 addresses get brackets.
pub fn metadata_url(env: &dyn Fn(&str) -> Option<String>) -> String {
    match env("AWS_EC2_METADATA_SERVICE_ENDPOINT").filter(|url| !url.is_empty()) {
        Some(url) => match url.parse::<IpAddr>() {
            Ok(address) => format!("http://{}", bracketed(address)),
            Err(_) => url.trim_end_matches('/').to_owned(),
        },
        None => format!("http://{}", IpAddr::from([169, 254, 169, 254])),
    }
}

fn bracketed(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}
