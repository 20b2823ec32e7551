// SPDX-License-Identifier: Apache-2.0
//
// libnibble from Rust without a crate: continues a prompt if every layer runs as asked.
// The structs below have only the first members of those in nibble.h, as far as they are used:
// `size` tells the library where they end.
// rustc generate.rs $(pkg-config --libs-only-L nibble) -l nibble
// ./generate MODEL PROMPT [RECIPE]
use std::ffi::{c_char, c_double, c_int, c_void, CStr, CString};
use std::io::Write;
use std::mem::{size_of, zeroed};
use std::ptr::{null, null_mut};

#[repr(C)]
struct NibErr {
    status: c_int,
    text: [c_char; 1024],
}

#[repr(C)]
struct NibRequest {
    size: usize,
    recipe: *const c_char,
}

#[repr(C)]
struct NibPlanFacts {
    size: usize,
    recipe: *const c_char,
    device: *const c_char,
    dtype: *const c_char,
    cache: *const c_char,
    numbers: [i64; 3], // context, sequences, lookup
    bytes: [u64; 2],
    seconds: [c_double; 3],
    entries: [usize; 3],
    asked: usize,
    done: usize,
}

#[repr(C)]
struct NibGenerateOptions {
    size: usize,
    prompt: *const c_char,
    chat: *const c_void,
    max_tokens: i64,
    temperature: c_double,
}

#[repr(C)]
struct NibPiece {
    size: usize,
    text: *const u8,
    text_size: usize,
    token: i32,
    logprob: c_double,
    likeliest: *const c_void,
    likeliest_count: usize,
    over: bool,
}

// Engines, models, plans, sessions and generators are used through pointers only.
#[link(name = "nibble")]
extern "C" {
    fn nib_status_name(status: c_int) -> *const c_char;
    fn nib_engine_open(out: *mut *mut c_void, options: *const c_void, err: *mut NibErr) -> c_int;
    fn nib_engine_close(engine: *mut c_void);
    fn nib_model_open(
        out: *mut *mut c_void, engine: *mut c_void, path: *const c_char, options: *const c_void, err: *mut NibErr,
    ) -> c_int;
    fn nib_model_close(model: *mut c_void);
    fn nib_plan_open(out: *mut *mut c_void, model: *mut c_void, request: *const NibRequest, err: *mut NibErr) -> c_int;
    fn nib_plan_facts_get(plan: *const c_void, out: *mut NibPlanFacts);
    fn nib_plan_close(plan: *mut c_void);
    fn nib_session_open(
        out: *mut *mut c_void, model: *mut c_void, plan: *const c_void, sequences: c_int, err: *mut NibErr,
    ) -> c_int;
    fn nib_session_close(session: *mut c_void);
    fn nib_generator_open(
        out: *mut *mut c_void, session: *mut c_void, options: *const NibGenerateOptions, err: *mut NibErr,
    ) -> c_int;
    fn nib_generator_next(generator: *mut c_void, piece: *mut NibPiece, err: *mut NibErr) -> c_int;
    fn nib_generator_close(generator: *mut c_void);
}

/// Something that was opened, and what closes it. Values are dropped in the reverse order of their
/// declaration, so what was opened last is closed first.
struct Handle {
    at: *mut c_void,
    close: unsafe extern "C" fn(*mut c_void),
}

impl Drop for Handle {
    fn drop(&mut self) {
        unsafe { (self.close)(self.at) }
    }
}

/// Calls the library and turns a status into the library's sentence.
fn check(call: impl FnOnce(*mut NibErr) -> c_int) -> Result<(), String> {
    let mut err: NibErr = unsafe { zeroed() };
    match call(&mut err) {
        0 => Ok(()),
        status => {
            let name = unsafe { CStr::from_ptr(nib_status_name(status)) };
            let text = unsafe { CStr::from_ptr(err.text.as_ptr()) };
            Err(format!("{}: {}", name.to_string_lossy(), text.to_string_lossy()))
        }
    }
}

fn open(
    close: unsafe extern "C" fn(*mut c_void), call: impl FnOnce(*mut *mut c_void, *mut NibErr) -> c_int,
) -> Result<Handle, String> {
    let mut at = null_mut();
    check(|err| call(&mut at, err))?;
    Ok(Handle { at, close })
}

fn run(path: &str, prompt: &str, recipe: Option<&str>) -> Result<(), String> {
    let text = |s: &str| CString::new(s).map_err(|e| e.to_string());
    let (path, prompt, recipe) = (text(path)?, text(prompt)?, recipe.map(text).transpose()?);
    let request = NibRequest { size: size_of::<NibRequest>(), recipe: recipe.as_ref().map_or(null(), |r| r.as_ptr()) };

    let engine = open(nib_engine_close, |out, err| unsafe { nib_engine_open(out, null(), err) })?;
    let model = open(nib_model_close, |out, err| unsafe { nib_model_open(out, engine.at, path.as_ptr(), null(), err) })?;
    let plan = open(nib_plan_close, |out, err| unsafe { nib_plan_open(out, model.at, &request, err) })?;
    let mut facts: NibPlanFacts = unsafe { zeroed() };
    facts.size = size_of::<NibPlanFacts>();
    unsafe { nib_plan_facts_get(plan.at, &mut facts) };
    if facts.done != facts.asked {
        return Err(format!("{} of {} linear layers would run as asked, so nothing is run", facts.done, facts.asked));
    }

    let session = open(nib_session_close, |out, err| unsafe { nib_session_open(out, model.at, plan.at, 1, err) })?;
    let options = NibGenerateOptions {
        size: size_of::<NibGenerateOptions>(),
        prompt: prompt.as_ptr(),
        chat: null(), // a prompt, not a conversation
        max_tokens: 40,
        temperature: -1.0, // greedy
    };
    let generator =
        open(nib_generator_close, |out, err| unsafe { nib_generator_open(out, session.at, &options, err) })?;
    let mut piece: NibPiece = unsafe { zeroed() };
    piece.size = size_of::<NibPiece>();
    let mut stdout = std::io::stdout();
    loop {
        check(|err| unsafe { nib_generator_next(generator.at, &mut piece, err) })?;
        if piece.over {
            break;
        }
        let bytes = unsafe { std::slice::from_raw_parts(piece.text, piece.text_size) };
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|e| e.to_string())?;
    }
    println!();
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 3 && arguments.len() != 4 {
        eprintln!("usage: generate MODEL PROMPT [RECIPE]");
        std::process::exit(2);
    }
    if let Err(sentence) = run(&arguments[1], &arguments[2], arguments.get(3).map(String::as_str)) {
        eprintln!("{sentence}");
        std::process::exit(1);
    }
}
