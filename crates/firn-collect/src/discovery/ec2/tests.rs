use std::io;
use std::path::Path;

use super::*;
use crate::config::{Config, Files};

fn config(keys: &str) -> Ec2Discovery {
    let text = format!("scrape_configs: [{{job_name: j, ec2_sd_configs: [{{{keys}}}]}}]");
    let loaded = Config::parse(&text, &|_| None).unwrap();
    loaded.config.scrape_configs[0].discoveries.ec2[0].clone()
}

fn credentials(token: &str) -> AwsCredentials {
    AwsCredentials {
        access_key: "AKIDEXAMPLE".to_owned(),
        secret_key: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
        session_token: Secret::new(token),
    }
}

const TIME: &str = "20150830T123600Z";

// Computed with a second implementation, which returns the signature of AWS' test
// `post-x-www-form-urlencoded-parameters` for its media type.
#[test]
fn forms_are_signed() {
    let form = SignedForm {
        host: "example.amazonaws.com",
        path: "/",
        form: "Param1=value1",
        region: "us-east-1",
        service: "service",
        time: TIME,
    };
    let authorization = form.authorization(&credentials(""));
    assert_eq!(
        authorization.expose(),
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
         SignedHeaders=content-type;host;x-amz-date, \
         Signature=2f3b42f35f135abf9c562afcbbc44fc03df96dcfd4332ecebad8b39a7d4b6125"
    );
    let authorization = form.authorization(&credentials("TOKEN"));
    assert!(
        authorization.expose().ends_with(
            "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, \
             Signature=ef2252de7faf9b8c809a40ac16d34f0d4b0152aaf3dca9d00696755559a0c8de"
        ),
        "{}",
        authorization.expose()
    );
}

#[test]
fn requests_have_filters_and_pages() {
    let keys = "region: eu-west-2, filters: [{name: 'tag:a b', values: [x, 'y&z']}, \
                {name: n, values: [v]}]";
    let targets = Ec2Targets::new(config(keys), "eu-west-2".to_owned());
    let request = targets.instances_request("t/2", &credentials("TOKEN"), TIME);
    assert_eq!(request.url, "https://ec2.eu-west-2.amazonaws.com/");
    assert_eq!(
        request.form,
        "Action=DescribeInstances&MaxResults=1000&Filter.1.Name=tag%3Aa%20b&Filter.1.Value.1=x\
         &Filter.1.Value.2=y%26z&Filter.2.Name=n&Filter.2.Value.1=v&NextToken=t%2F2\
         &Version=2016-11-15"
    );
    let names: Vec<&str> = request.headers.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["x-amz-date", "x-amz-security-token"]);
    assert!(request.authorization.unwrap().expose().contains("/eu-west-2/ec2/aws4_request"));
    let url = |keys: &str, region: &str| {
        let targets = Ec2Targets::new(config(keys), region.to_owned());
        targets.zones_request(&credentials(""), TIME).url
    };
    assert_eq!(url("region: cn-north-1", "cn-north-1"), "https://ec2.cn-north-1.amazonaws.com.cn/");
    assert_eq!(url("endpoint: 'http://h:1/x'", "r"), "http://h:1/x");
    assert_eq!(url("endpoint: 'h:1'", "r"), "https://h:1/");
    let config = config("region: r, role_arn: 'arn:aws:iam::1:role/x', external_id: e");
    let request = role_request(&config, &credentials(""), "r", TIME);
    assert_eq!(request.url, "https://sts.r.amazonaws.com/");
    assert!(request.form.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fx"));
    assert!(request.form.contains("&ExternalId=e&"), "{}", request.form);
    let request = web_identity_request("t", "a", "s", "r");
    assert!(request.authorization.is_none() && request.form.contains("WebIdentityToken=t"));
}

const ZONES: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<DescribeAvailabilityZonesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
  <availabilityZoneInfo>
    <item><zoneName>eu-west-2a</zoneName><zoneId>euw2-az2</zoneId></item>
    <item><zoneName>eu-west-2b</zoneName><zoneId>euw2-az3</zoneId></item>
  </availabilityZoneInfo>
</DescribeAvailabilityZonesResponse>"#;

const INSTANCES: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
  <reservationSet>
    <item>
      <ownerId>111122223333</ownerId>
      <instancesSet>
        <item>
          <instanceId>i-1</instanceId><imageId>ami-1</imageId>
          <instanceState><code>16</code><name>running</name></instanceState>
          <privateDnsName>ip-10-0-0-5.internal</privateDnsName><dnsName>ec2-1.example.com</dnsName>
          <instanceType>m5.large</instanceType>
          <placement><availabilityZone>eu-west-2a</availabilityZone></placement>
          <platform>windows</platform><architecture>x86_64</architecture>
          <privateIpAddress>10.0.0.5</privateIpAddress><ipAddress>203.0.113.5</ipAddress>
          <vpcId>vpc-1</vpcId><subnetId>subnet-2</subnetId>
          <instanceLifecycle>spot</instanceLifecycle>
          <tagSet>
            <item><key>Name</key><value>a &amp; b&#33;</value></item>
            <item><key>aws:asg/name</key><value/></item>
          </tagSet>
          <networkInterfaceSet>
            <item><subnetId>subnet-3</subnetId><attachment><deviceIndex>0</deviceIndex></attachment>
              <ipv6AddressesSet><item><ipv6Address>2001:db8::1</ipv6Address></item>
              </ipv6AddressesSet>
            </item>
            <item><subnetId>subnet-1</subnetId><attachment><deviceIndex>1</deviceIndex></attachment>
              <ipv6AddressesSet><item><ipv6Address>2001:db8::2</ipv6Address>
                <isPrimaryIpv6>true</isPrimaryIpv6></item></ipv6AddressesSet>
            </item>
            <item><subnetId>subnet-3</subnetId></item>
          </networkInterfaceSet>
        </item>
        <item><instanceId>i-2</instanceId></item>
      </instancesSet>
    </item>
  </reservationSet>
  <nextToken>t2</nextToken>
</DescribeInstancesResponse>"#;

fn read(body: &str, status: &str, memory: u64) -> Result<(DiscoveredGroup, String, u64)> {
    let budget = Budget::new(memory);
    let targets = Ec2Targets::new(config("region: eu-west-2, port: 9100"), "eu-west-2".to_owned());
    let zones = Ec2Targets::zones("200 OK", ZONES.as_bytes(), &Budget::unlimited()).unwrap();
    let (mut group, mut held) = Ec2Targets::group(&budget);
    let answer = (status, body.as_bytes());
    let next = targets.add_page(&mut group, &mut held, &zones, answer, &budget)?;
    Ok((group, next, held.bytes()))
}

#[test]
fn an_instance_has_all_labels() {
    let (group, next, held) = read(INSTANCES, "200 OK", 1 << 20).unwrap();
    assert_eq!(next, "t2");
    assert!(held as usize >= label_set_bytes(&group.targets[0]));
    let labels: Vec<String> = group.targets[0]
        .iter()
        .map(|(name, value)| {
            format!("{}={value}", name.strip_prefix("__meta_ec2_").unwrap_or(name))
        })
        .collect();
    assert_eq!(
        labels,
        [
            "__address__=10.0.0.5:9100",
            "ami=ami-1",
            "architecture=x86_64",
            "availability_zone=eu-west-2a",
            "availability_zone_id=euw2-az2",
            "default_ipv6_address=2001:db8::2",
            "instance_id=i-1",
            "instance_lifecycle=spot",
            "instance_state=running",
            "instance_type=m5.large",
            "ipv6_addresses=,2001:db8::1,2001:db8::2,",
            "owner_id=111122223333",
            "platform=windows",
            "primary_ipv6_addresses=,,2001:db8::2,",
            "primary_subnet_id=subnet-2",
            "private_dns_name=ip-10-0-0-5.internal",
            "private_ip=10.0.0.5",
            "public_dns_name=ec2-1.example.com",
            "public_ip=203.0.113.5",
            "region=eu-west-2",
            "subnet_id=,subnet-3,subnet-1,",
            "tag_Name=a & b!",
            "tag_aws_asg_name=",
            "vpc_id=vpc-1",
        ]
    );
    assert_eq!(group.targets.len(), 1, "an instance without an address is no target");
    let without = INSTANCES.replace("<privateIpAddress>10.0.0.5</privateIpAddress>", "");
    let (group, _, _) = read(&without, "200 OK", 1 << 20).unwrap();
    assert_eq!(group.targets[0].get(ADDRESS), Some("[2001:db8::2]:9100"));
}

#[test]
fn wrong_answers_are_refused_within_the_memory() {
    let refused = "<Response><Errors><Error><Code>AuthFailure</Code><Message>no &lt;keys&gt;\
                   </Message></Error></Errors></Response>";
    let error = read(refused, "401 Unauthorized", 1 << 20).unwrap_err().to_string();
    assert!(error.contains("401 Unauthorized: AuthFailure: no <keys>"), "{error}");
    for wrong in ["", "<html>", "<a></b>", "{}", "<a>&x;</a>", &"<a>".repeat(100)] {
        assert!(read(wrong, "200 OK", 1 << 20).is_err(), "{wrong}");
    }
    let wide = format!("<a>{}</a>", "<b></b>".repeat(100_000));
    let error = read(&wide, "200 OK", 8 << 20).unwrap_err();
    assert!(matches!(error.kind(), firn_model::ErrorKind::Busy { .. }), "{error}");
    // Before, each subnet was compared with all others: this took minutes.
    let subnets: String =
        (0..200_000).map(|idx| format!("<item><subnetId>s{idx}</subnetId></item>")).collect();
    let many =
        INSTANCES.replace("<networkInterfaceSet>", &format!("<networkInterfaceSet>{subnets}"));
    let (group, _, _) = read(&many, "200 OK", 1 << 30).unwrap();
    let found = group.targets[0].get("__meta_ec2_subnet_id").unwrap();
    assert!(found.ends_with(",s199999,subnet-3,subnet-1,"));
    // Before, the device of an interface was searched for again for each of its addresses.
    let (others, address) = ("<a/>".repeat(100_000), "<item><ipv6Address>::1</ipv6Address></item>");
    let interface = format!(
        "<item>{others}<subnetId>s</subnetId><ipv6AddressesSet>{}</ipv6AddressesSet></item>",
        address.repeat(100_000)
    );
    let many =
        INSTANCES.replace("<networkInterfaceSet>", &format!("<networkInterfaceSet>{interface}"));
    let (group, _, _) = read(&many, "200 OK", 1 << 30).unwrap();
    assert_eq!(group.targets[0].get("__meta_ec2_primary_ipv6_addresses"), Some(",,2001:db8::2,"));
    let long = INSTANCES.replace("<nextToken>t2<", &format!("<nextToken>{}<", "t".repeat(20_000)));
    let error = read(&long, "200 OK", 1 << 20).unwrap_err().to_string();
    assert!(error.contains("has 20000 bytes"), "{error}");
    let far = INSTANCES.replace("<deviceIndex>1<", "<deviceIndex>2000000000<");
    let (group, _, _) = read(&far, "200 OK", 1 << 20).unwrap();
    assert_eq!(group.targets[0].get("__meta_ec2_primary_ipv6_addresses"), None);
}

struct HomeFiles;

impl Files for HomeFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("/home/u/.aws/credentials") => {
                Ok("[default]\naws_access_key_id = d\naws_secret_access_key=s\n[p]\n\
                 aws_access_key_id=pk\naws_secret_access_key=ps\naws_session_token=pt\n"
                    .to_owned())
            }
            Some("/home/u/.aws/config") => {
                Ok("[profile p]\nregion = eu-1\n[profile sso]\nsso_session = x\n".to_owned())
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

#[test]
fn credentials_are_found_in_the_order_of_the_sdk() {
    fn env(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| {
            let known = pairs.iter().find(|(known, _)| *known == name);
            known.map(|(_, value)| (*value).to_owned())
        }
    }
    let source = |keys: &str, pairs: &'static [(&str, &str)]| {
        CredentialSource::of(&config(keys), &env(pairs), &HomeFiles)
    };
    let key = |keys: &str, pairs: &'static [(&str, &str)]| match source(keys, pairs).unwrap() {
        CredentialSource::Keys(keys) => keys.access_key,
        other => format!("{other:?}"),
    };
    const KEYS: &[(&str, &str)] =
        &[("AWS_ACCESS_KEY_ID", "e"), ("AWS_SECRET_ACCESS_KEY", "s"), ("HOME", "/home/u")];
    assert_eq!(key("region: r, access_key: k, secret_key: s", KEYS), "k");
    assert_eq!(key("region: r", KEYS), "e");
    assert_eq!(key("region: r, profile: p", KEYS), "pk");
    assert_eq!(key("region: r", &[("HOME", "/home/u")]), "d");
    assert_eq!(key("region: r", &[("HOME", "/home/u"), ("AWS_PROFILE", "p")]), "pk");
    let identity =
        &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "a"), ("HOME", "/home/u")];
    assert!(key("region: r", identity).starts_with("WebIdentity"));
    assert_eq!(source("region: r", &[]).unwrap(), CredentialSource::Instance);
    for (keys, pairs, want) in [
        ("region: r, profile: sso", KEYS, "profile \"sso\""),
        ("region: r", &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "u")][..], "containers"),
    ] {
        let error = source(keys, pairs).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    let region = |keys: &str, pairs| known_region(&config(keys), &env(pairs), &HomeFiles);
    assert_eq!(region("region: r", &[("AWS_REGION", "e")]).as_deref(), Some("r"));
    assert_eq!(region("port: 1", &[("AWS_REGION", "e")]).as_deref(), Some("e"));
    assert_eq!(region("profile: p", &[("HOME", "/home/u")]).as_deref(), Some("eu-1"));
    assert_eq!(region("port: 1", &[]), None);
}

#[test]
fn credentials_of_answers_are_read() {
    let budget = Budget::new(1 << 20);
    let text = "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
                <AssumeRoleResult><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>S\
                </SecretAccessKey><SessionToken>T</SessionToken></Credentials></AssumeRoleResult>\
                </AssumeRoleResponse>";
    for action in ["AssumeRole", "AssumeRoleWithWebIdentity"] {
        let text = text.replace("AssumeRole", action);
        let found = role_credentials("200 OK", text.as_bytes(), &budget).unwrap();
        assert_eq!((found.access_key.as_str(), found.session_token.expose()), ("A", "T"));
    }
    assert!(role_credentials("200 OK", b"<a></a>", &budget).is_err());
    let denied = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>";
    let error = role_credentials("403 Forbidden", denied.as_bytes(), &budget).unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    let json = br#"{"Code": "Success", "AccessKeyId": "A", "SecretAccessKey": "S", "Token": "T"}"#;
    assert_eq!(session_credentials(json).unwrap().secret_key.expose(), "S");
    assert!(session_credentials(b"<html>").is_err());
}
