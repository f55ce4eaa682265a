//! What the file may say, and what not.

use super::*;

fn check(text: &str) -> Result<Config, String> {
    let document: Document = toml::from_str(text).map_err(|error| error.to_string())?;
    document.check().map_err(|problem| problem.to_string())
}

const USERS: &str = "user = 65534\ncalc_user = 1\n";

#[test]
fn what_is_not_said_has_the_reference_implementations_default() {
    let config = check(USERS).unwrap();
    assert_eq!(config.map_size, 262_144);
    assert_eq!(config.policy.device_protocol, 3);
    assert_eq!(config.policy.safe_protocol, 80);
    assert!(config.policy.remove_external_routes);
    assert_eq!(config.policy.uplinks, Uplinks::Auto);
    assert_eq!(config.policy.excluded, ["kube-ipvs0".parse().unwrap()]);
}

#[test]
fn uplinks_can_be_listed() {
    let config = check(&format!("{USERS}uplinks = [\"eth0\", \"bond0\"]")).unwrap();
    let names = ["eth0", "bond0"].map(|name| name.parse().unwrap());
    assert_eq!(config.policy.uplinks, Uplinks::Listed(names.to_vec()));
}

#[test]
fn what_makes_no_sense_is_refused_by_the_name_of_its_key() {
    for (text, said) in [
        ("uesr = 1", "unknown field `uesr`"),
        ("user = 0\ncalc_user = 1", "user: must not be root"),
        ("user = 7\ncalc_user = 7", "calc_user: must differ"),
        ("user = \"no such one\"", "no user \"no such one\""),
        ("user = 1\ncalc_user = 2\nuplinks = \"manual\"", "uplinks"),
        ("user = 1\ncalc_user = 2\ntunnel_v4 = \"a/b\"", "tunnel_v4"),
        (
            "user = 1\ncalc_user = 2\ntunnel_v6 = \"cali0\"",
            "tunnel_v6",
        ),
        (
            "user = 1\ncalc_user = 2\ninterface_exclude = [\"vxlan.calico\"]",
            "tunnel_v4",
        ),
        (
            "user = 1\ncalc_user = 2\ninterface_exclude = [\"/kube/\"]",
            "interface_exclude",
        ),
        (
            "user = 1\ncalc_user = 2\nsafe_protocol = 2",
            "safe_protocol",
        ),
        (
            // What `ip` gives to a default route.
            "user = 1\ncalc_user = 2\nsafe_protocol = 3",
            "safe_protocol",
        ),
        (
            "user = 1\ncalc_user = 2\nformer_protocols = [81, 4]",
            "former_protocols: 4",
        ),
        (
            "user = 1\ncalc_user = 2\nsecond_table = 254",
            "second_table",
        ),
        ("user = 1\ncalc_user = 2\nallow = [\"10.0.0.1/8\"]", "allow"),
        (
            "user = 1\ncalc_user = 2\nworkload_prefixes = [\"\"]",
            "workload_prefixes",
        ),
        (
            "user = 1\ncalc_user = 2\nbpf_map_size_route = 0",
            "bpf_map_size_route",
        ),
        ("user = 1\ncalc_user = 2\npin_dir = \"bpf\"", "pin_dir"),
    ] {
        let error = check(text).unwrap_err();
        assert!(error.contains(said), "{text:?}: {error}");
    }
}

#[test]
fn a_file_that_others_could_have_written_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let path = std::env::temp_dir().join(format!("privhelper-{}.toml", std::process::id()));
    std::fs::write(&path, USERS).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o664)).unwrap();
    let error = Config::load(&path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(error, ConfigError::Writable { .. }), "{error}");
}
