//! Generates the bindings to libfabric's headers.

use std::env;
use std::path::PathBuf;
use std::process::exit;

/// The oldest libfabric whose tables the provider fills. Built against newer headers it would not be loaded by this one.
const OLDEST: &str = "1.17";
const HEADER: &str = "c/wrapper.h";

fn main() {
    println!("cargo::rerun-if-changed={HEADER}");
    let include = match pkg_config::Config::new().atleast_version(OLDEST).probe("libfabric") {
        Ok(library) => library.include_paths,
        Err(_) => fail(&format!("libfabric {OLDEST} or later was not found by pkg-config")),
    };
    // Without libclang, bindgen panics instead of returning an error.
    let bindings = std::panic::catch_unwind(|| generate(&include))
        .unwrap_or_else(|_| fail("bindgen could not load libclang"))
        .unwrap_or_else(|error| fail(&format!("bindgen failed: {error}")));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    bindings.write_to_file(&out).unwrap_or_else(|error| fail(&format!("{}: {error}", out.display())));
    // A program may exit while threads of endpoints run: libfabric then unloads its providers.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

fn generate(include: &[PathBuf]) -> Result<bindgen::Bindings, bindgen::BindgenError> {
    bindgen::Builder::default()
        .header(HEADER)
        .clang_args(include.iter().map(|path| format!("-I{}", path.display())))
        .allowlist_function(
            "fi_(getinfo|freeinfo|dupinfo|fabric|version|strerror|log|log_enabled|param_define|param_get)",
        )
        .allowlist_type("fi_.*|fid_.*")
        .allowlist_var("FI_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_debug(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true)
        .parse_callbacks(Box::new(Types))
        .generate()
}

/// The types of macros: bindgen would choose the smallest that holds each value.
#[derive(Debug)]
struct Types;

impl bindgen::callbacks::ParseCallbacks for Types {
    fn int_macro(&self, name: &str, _value: i64) -> Option<bindgen::callbacks::IntKind> {
        use bindgen::callbacks::IntKind;
        let is_error = name.strip_prefix("FI_E").is_some() && name != "FI_EVENT";
        Some(if is_error { IntKind::I32 } else { IntKind::U64 })
    }
}

/// Ends the build with an error and advice. Cargo fails the build for the error.
fn fail(what: &str) -> ! {
    println!("cargo::error={}", what.replace('\n', " "));
    println!(
        "cargo::error=run scripts/setup.sh, or on Debian and Ubuntu: \
         apt-get install libfabric-dev libclang-dev pkg-config"
    );
    exit(0)
}
