//! The limits of templates. Their results are tested in `tests/templates`.

use super::*;

fn expand(text: &str) -> Result<String, String> {
    let query = |_: &str| Ok(Vec::new());
    let environment = Environment {
        now: 0,
        external_url: "http://host/",
        missing_key: MissingKey::Zero,
        query: &query,
        reserve: &|_| Ok(()),
    };
    let template = Template::parse("test", text).map_err(|error| error.to_string())?;
    template.execute(&Value::Nil, &environment).map_err(|error| error.to_string())
}

fn check_error(text: &str, want: &str) {
    let error = expand(text).unwrap_err();
    assert!(error.contains(want), "{text}: {error}");
}

#[test]
fn endless_work_ends() {
    let steps = format!("the template takes over {STEPS_MAX} steps");
    check_error("{{ range 1000000000 }}{{ end }}", &steps);
    check_error("{{ range 10000 }}{{ range 10000 }}{{ end }}{{ end }}", &steps);
    check_error("{{ range 100000 }}{{ len (query `up`) }}{{ end }}", &steps);
    check_error("{{ range 100000 }}{{ match (printf `a%d` .) `a` }}{{ end }}", &steps);
    check_error("{{ $x := printf `%100000s` `` }}{{ reReplaceAll `[^b]*b|.` `c` $x }}", &steps);
}

#[test]
fn endless_text_ends() {
    let bytes = format!("the template produces over {BYTES_MAX} bytes");
    check_error("{{ range 10 }}{{ printf `%1000000d` . }}{{ end }}", &bytes);
    check_error(
        "{{ printf `%*.*f` 1000000 1000000 1.5 | printf `%s%[1]s%[1]s%[1]s%[1]s` }}",
        &bytes,
    );
    check_error("{{ $x := `ab` }}{{ range 40 }}{{ $x = print $x $x }}{{ end }}", &bytes);
    check_error("{{ $x := printf `%100000s` `` }}{{ reReplaceAll ` ` $x $x }}", &bytes);
    check_error("{{ $x := 1 }}{{ range 60 }}{{ $x = args $x $x }}{{ end }}{{ $x }}", &bytes);
}

#[test]
fn endless_depth_ends() {
    check_error(
        "{{ define `x` }}{{ template `x` }}{{ end }}{{ template `x` }}",
        "executing \"x\" at <{{template \"x\"}}>: exceeded maximum template depth (100)",
    );
    let (ifs, ends) = ("{{ if 1 }}".repeat(5), "{{ end }}".repeat(5));
    check_error(
        &format!(
            "{{{{ define `x` }}}}{ifs}{{{{ template `x` }}}}{ends}{{{{ end }}}}{{{{ template `x` }}}}"
        ),
        "nested over 400 levels deep",
    );
    check_error(
        "{{ $x := 1 }}{{ range 1000 }}{{ $x = args $x }}{{ end }}",
        "nested over 100 levels",
    );
    let parens = format!("{{{{ {}1{} }}}}", "(".repeat(200), ")".repeat(200));
    check_error(&parens, "template: test:1: max expression depth exceeded");
    let blocks = format!("{}{}", "{{ if 1 }}".repeat(200), "{{ end }}".repeat(200));
    check_error(&blocks, "template: test:1: max expression depth exceeded");
    check_error(&"{{ define `x` }}".repeat(200), "unexpected <define> in command");
}

/// A chain of `else if` is not nested.
#[test]
fn long_chains_are_no_depth() {
    let chain = "{{ else if 0 }}".repeat(1_000);
    let text = format!("{{{{ if 0 }}}}{chain}{{{{ else }}}}end{{{{ end }}}}");
    assert_eq!(expand(&text).as_deref(), Ok("end"));
}

/// A rule's thread has at least 1 MiB of stack.
#[test]
#[expect(clippy::disallowed_methods, reason = "a thread with a small stack")]
fn the_deepest_template_fits_the_stack() {
    let nested = format!("{}`a`{}", "(print ".repeat(90), ")".repeat(90));
    let text = format!(
        "{{{{ define `x` }}}}{{{{ print {nested} }}}}{{{{ template `x` }}}}{{{{ end }}}}{{{{ template `x` }}}}"
    );
    let run = std::thread::Builder::new().stack_size(1 << 20).spawn(move || expand(&text));
    assert!(run.unwrap().join().unwrap().is_err());
}
