//! Child process of the tests: this test program itself, started by a script that separates the output of the test
//! harness from the answers. Its argument selects a failure.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, exit};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch,
};
use arrow_ipc::CompressionType;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};

use crate::support::Workspace;

/// Writes the program `child.sh`.
pub(crate) fn write_program(workspace: &Workspace) {
    let test = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = environment ] && /usr/bin/env > environment\nMODE=\"$1\" PATH=/usr/bin:/bin\nexport MODE PATH\nexec 3>&1 1>/dev/null '{}' --exact \
         external::child::answers --ignored --nocapture --test-threads 1\n",
        test.display()
    );
    workspace.write("child.sh", script);
    let path = workspace.path("child.sh");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn log(line: &str) {
    let mut calls = OpenOptions::new().create(true).append(true).open("calls").unwrap();
    calls.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn exists(file: &str) -> bool {
    fs::exists(file).unwrap()
}

fn sleep() -> ! {
    loop {
        thread::sleep(Duration::from_mins(1));
    }
}

/// Row of a request: its keys, and its content as bytes.
struct Row {
    number: i64,
    window: Option<i32>,
    content: Vec<u8>,
}

fn rows(batch: &RecordBatch) -> Vec<Row> {
    let row = batch["row"].as_primitive::<Int64Type>();
    let window = batch.column_by_name("window").map(AsArray::as_primitive::<Int32Type>);
    let content = |index: usize| match batch.column_by_name("text") {
        Some(texts) => texts.as_string::<i32>().value(index).as_bytes().to_vec(),
        None => vec![b'x'; 4 * batch["ids"].as_list::<i32>().value(index).len()],
    };
    let one = |index: usize| Row {
        number: row.value(index),
        window: window.map(|window| window.value(index)),
        content: content(index),
    };
    (0..batch.num_rows()).map(one).collect()
}

fn answer(mode: &str, rows: &[Row], of_documents: bool) -> RecordBatch {
    let column = |name: &str, array: ArrayRef| (name.to_owned(), array, true);
    let numbers = |value: &dyn Fn(&Row) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(rows.iter().map(value)))
    };
    let letters = |row: &Row| row.content.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    let mut columns = vec![column(
        "row",
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.number))),
    )];
    if of_documents {
        let drop = |row: &Row| (mode != "null-drop").then(|| row.content.starts_with(b"RUBBISH"));
        columns.push(column("drop", Arc::new(rows.iter().map(drop).collect::<BooleanArray>())));
    } else {
        let window = |row: &Row| row.window.filter(|_| mode != "null-key" || row.number != 1);
        columns.push(column("window", Arc::new(rows.iter().map(window).collect::<Int32Array>())));
    }
    if mode != "only-drops" {
        let bytes = |row: &Row| match (mode, row.content.len() as f64) {
            ("huge", bytes) => bytes * 1e305,
            ("absent", bytes) if bytes % 2.0 > 0.0 => f64::NAN,
            ("infinite", bytes) if bytes % 2.0 > 0.0 => f64::INFINITY,
            ("beyond", bytes) => (bytes % 2.0 * 2.0 - 1.0) * f64::MAX,
            (_, bytes) => bytes,
        };
        columns.push(column("bytes", numbers(&bytes)));
        if mode == "only-bytes" {
            return RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        }
        columns.push(column(
            "letters",
            match mode {
                "other-columns" => numbers(&|row| letters(row) as f64),
                "negative" => Arc::new(Int64Array::from_iter_values(rows.iter().map(|_| -1))),
                _ => Arc::new(Int64Array::from_iter_values(
                    rows.iter().map(|row| letters(row) as i64),
                )),
            },
        ));
    }
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Fails at a batch in the selected way.
#[expect(
    clippy::exit,
    reason = "the test is the main program of a child process, whose exit code is tested"
)]
fn fail(mode: &str, stdout: &mut File) {
    match mode {
        "crash" => {
            io::stderr().write_all(b"cannot take POISON\n").unwrap();
            exit(3);
        }
        "crash-once" if !exists("better") => exit(3),
        "exit-early" => exit(0),
        "kill" => {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        }
        "sleep" => sleep(),
        "eat" => {
            let mut eaten = vec![0_u8; 600_000_000];
            eaten.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::hint::black_box(&eaten);
            sleep();
        }
        "grandchild" => {
            let stdout = stdout.try_clone().unwrap();
            let child = Command::new("sleep").arg("600").stdout(stdout).spawn().unwrap();
            fs::write("grandchild", child.id().to_string()).unwrap();
            exit(3);
        }
        _ => {}
    }
}

#[test]
#[ignore = "another test runs it, as a child process"]
#[expect(
    clippy::exit,
    reason = "the test is the main program of a child process, whose exit code is tested"
)]
fn answers() {
    let mode = std::env::var("MODE").unwrap();
    let mode = mode.as_str();
    log("start");
    match mode {
        "never-starts" => {
            io::stderr().write_all(b"no module named `weights`\n").unwrap();
            exit(7);
        }
        "hangs" => sleep(),
        "starts-once" if exists("started") && !exists("better") => exit(7),
        _ => fs::write("started", "").unwrap(),
    }
    let mut stdout = OpenOptions::new().write(true).open("/proc/self/fd/3").unwrap();
    if mode == "garbage" {
        stdout.write_all("Loading the model…\n".as_bytes()).unwrap();
    }
    let questions = StreamReader::try_new(io::stdin(), None).unwrap();
    let of_documents = questions.schema().column_with_name("window").is_none();
    let mut answers: Option<StreamWriter<File>> = None;
    let mut asked = 0;
    for (number, batch) in questions.enumerate() {
        let batch = batch.unwrap();
        let mut rows = rows(&batch);
        log("asked");
        for row in &rows {
            log(&format!("row {} {:?}", row.number, row.window));
        }
        let poisoned = rows.iter().any(|row| row.content.starts_with(b"POISON"));
        if poisoned {
            fail(mode, &mut stdout);
        }
        if asked > 0 && mode == "answers-once" {
            exit(1);
        }
        asked += u32::from(!rows.is_empty());
        if number > 0 && mode == "starts-once" && !exists("better") {
            exit(7);
        }
        match mode {
            "reversed" => rows.reverse(),
            "slow" => thread::sleep(Duration::from_millis(1200)),
            "short" => drop(rows.pop()),
            "repeated" => {
                let again =
                    rows.first().map(|first| Row { content: first.content.clone(), ..*first });
                rows.extend(again);
            }
            _ => {}
        }
        let answer = answer(mode, &rows, of_documents);
        let writer = answers.get_or_insert_with(|| {
            let compression = (mode == "compressed").then_some(CompressionType::ZSTD);
            let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
            let stdout = stdout.try_clone().unwrap();
            StreamWriter::try_new_with_options(stdout, &answer.schema(), options).unwrap()
        });
        writer.write(&answer).unwrap();
        if mode == "twice" {
            writer.write(&answer).unwrap();
        }
        writer.flush().unwrap();
        if mode == "garbage-later" {
            stdout.write_all(b"one batch done\n").unwrap();
        }
    }
    if mode == "more-at-the-end" {
        stdout.write_all(b"done, thank you\n").unwrap();
    }
    if let Some(mut answers) = answers {
        answers.finish().unwrap();
    }
    if mode == "fails-at-the-end" {
        let child = Command::new("sleep").arg("600").stdout(stdout).spawn().unwrap();
        fs::write("grandchild", child.id().to_string()).unwrap();
        exit(1);
    }
}
