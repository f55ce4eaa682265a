//! Hand-made scenarios with a name, from resources to the BPF maps.

use std::{collections::BTreeMap, fs};

use calc::{
    Calculator,
    event::{Config, Event, RouteSource},
};
use ipc_proto::{BpfTarget, Link, LinkEvent, LinkRole, LinkState, Op};
use ipnet::IpNet;
use serde_json::Value;

use crate::graph_vectors::{event, text};

fn link(recorded: &Value) -> Event {
    let addresses = recorded["addresses"].as_array().unwrap();
    Event::Link(LinkEvent::Set(LinkState {
        link: Link {
            index: recorded["index"].as_u64().unwrap().try_into().unwrap(),
            name: text(&recorded["name"]).parse().unwrap(),
        },
        role: LinkRole::Other,
        up: recorded["up"] == true,
        mac: None,
        mtu: 1500,
        addresses: addresses
            .iter()
            .map(|one| text(one).parse().unwrap())
            .collect(),
    }))
}

#[test]
fn the_maps_are_those_of_the_scenarios() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/scenarios.jsonl");
    let mut wrong = Vec::new();
    let mut steps = 0;
    for line in fs::read_to_string(path).unwrap().lines() {
        let scenario: Value = serde_json::from_str(line).unwrap();
        let mut calculator = Calculator::new(text(&scenario["node"]).to_owned());
        calculator.handle(Event::Config(Config {
            route_source: match text(&scenario["config"]["route_source"]) {
                "WorkloadIPs" => RouteSource::WorkloadIps,
                _ => RouteSource::CalicoIpam,
            },
            ..Config::default()
        }));
        let mut map: BTreeMap<IpNet, String> = BTreeMap::new();
        for (number, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
            for recorded in step["events"].as_array().unwrap() {
                calculator.handle(match text(&recorded["type"]) {
                    "link" => link(recorded),
                    _ => event(recorded),
                });
            }
            for op in calculator.resolve() {
                let Op::BpfRoute(cidr, value) = op else {
                    continue;
                };
                match value {
                    Some(route) => {
                        let target = match route.target {
                            BpfTarget::None => String::new(),
                            BpfTarget::NextHop(node) => format!(" via {node}"),
                            BpfTarget::Link(link) => format!(" on {}", link.index),
                        };
                        map.insert(cidr, format!("{cidr} {:#x}{target}", route.flags.0));
                    }
                    None => {
                        map.remove(&cidr);
                    }
                }
            }
            steps += 1;
            let mut actual: Vec<&str> = map.values().map(String::as_str).collect();
            actual.sort_unstable();
            let desired: Vec<&str> = step["bpf"].as_array().unwrap().iter().map(text).collect();
            if actual != desired {
                wrong.push(format!(
                    "{} step {number}, {}: {actual:#?}\nshould be {desired:#?}\n{}",
                    text(&scenario["name"]),
                    text(&scenario["title"]),
                    scenario["deviation"],
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong: {}",
        wrong.len(),
        wrong.join("\n")
    );
    assert_eq!(steps, 90, "some scenarios were not read");
}
