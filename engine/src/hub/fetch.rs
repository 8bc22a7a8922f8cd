//! Asks the hub: which commit a branch has, a model's small files, and ranges of its weights.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use longsift_stages::model::{ModelConfig, ModelProblem, RemoteWeights, slice};
use reqwest::Url;

use super::folder::{Partial, Record};
use super::home::Home;
use super::reference::is_commit;
use super::{Hub, Reference, Wanted, machine};
use crate::files;
use crate::http::{Advice, Client, Patience, RemoteFile};
use crate::report::bytes;

const INDEX: &str = "model.safetensors.index.json";

/// The small files that are fetched, and the most bytes that each may have. The first must be there.
const SMALL_FILES: [(&str, u64); 4] = [
    ("config.json", 16 << 20),
    ("tokenizer.json", 1 << 30),
    ("tokenizer_config.json", 64 << 20),
    (INDEX, 256 << 20),
];

impl Hub {
    /// Asks which commit a branch or tag of a model has.
    pub(super) fn ask_commit_of_model(&self, model: &Reference) -> Result<String, ModelProblem> {
        let source = Source::new(self, model, &model.revision)?;
        let url = source.url("config.json")?;
        let answer = source.client.small(&url, SMALL_FILES[0].1)?;
        let answer = answer.ok_or_else(|| no_file(model, "config.json"))?;
        let commit = answer.headers.get("x-repo-commit").and_then(|value| value.to_str().ok());
        if let Some(commit) = commit.filter(|commit| is_commit(commit)) {
            return Ok(commit.to_owned());
        }
        let message =
            format!("`{}` does not say which commit `{}` has", self.home.endpoint, model.revision);
        Err(ModelProblem::settings(message)
            .with_hint(format!("name the commit: `hf://{}@<commit>`", model.repository())))
    }

    /// Fetches what is wanted of a commit into the cache.
    pub(super) fn fetch(
        &self,
        model: &Reference,
        commit: &str,
        wanted: Wanted,
    ) -> Result<PathBuf, Vec<ModelProblem>> {
        let one = |problem| vec![problem];
        let partial = Partial::begin(&self.repository(model), commit).map_err(one)?;
        // Another process may have fetched it while this one waited.
        if let Some(folder) = self.present(model, commit, wanted) {
            return Ok(folder);
        }
        let source = Rc::new(Source::new(self, model, commit).map_err(one)?);
        if wanted == Wanted::Tokenizer {
            for (name, most) in &SMALL_FILES[1..3] {
                source.small_file(name, *most, partial.folder()).map_err(one)?;
            }
            return partial.finish("tokenizer").map_err(one);
        }
        for (name, most) in SMALL_FILES {
            let found = source.small_file(name, most, partial.folder()).map_err(one)?;
            if !found && name == SMALL_FILES[0].0 {
                return Err(vec![no_file(model, name)]);
            }
        }
        let config = ModelConfig::read(partial.folder(), None)?;
        let weights: Rc<dyn RemoteWeights> = Rc::clone(&source) as _;
        let recipe = slice(config, &weights)?;
        let wanted_bytes: u64 =
            recipe.files.iter().map(longsift_stages::model::SlicedFile::bytes).sum();
        partial.check_space(wanted_bytes).map_err(one)?;
        tracing::info!(
            "fetching layer 0 of `{model}`: {} of {} of the checkpoint",
            bytes(wanted_bytes),
            bytes(recipe.checkpoint_bytes)
        );
        for file in &recipe.files {
            let copy = |sink: &mut dyn FnMut(&[u8]) -> Result<(), ModelProblem>| {
                source.ranges(&file.source, &file.ranges, sink)
            };
            partial.write_slice(file, copy).map_err(one)?;
        }
        partial.write(INDEX, &recipe.index).map_err(one)?;
        let fetched_bytes = source.client.received();
        let checkpoint_bytes = recipe.checkpoint_bytes;
        let record = Record {
            repository: model.repository(),
            commit: commit.to_owned(),
            endpoint: self.home.endpoint.clone(),
            tensors: recipe.tensors,
            fetched_bytes,
            checkpoint_bytes,
        };
        let folder = partial.finish_slice(&record).map_err(one)?;
        tracing::info!(
            fetched_bytes,
            checkpoint_bytes,
            "fetched {} of {} of `hf://{}@{commit}` into `{}`",
            bytes(fetched_bytes),
            bytes(checkpoint_bytes),
            model.repository(),
            folder.display()
        );
        Ok(folder)
    }
}

impl Hub {
    /// Who asks the hub, and the hub's address.
    pub(super) fn client(&self, patience: Patience) -> Result<(Client, Url), ModelProblem> {
        let Home { endpoint, token, .. } = &self.home;
        let base = Url::parse(&format!("{endpoint}/"))
            .ok()
            .filter(|base| matches!(base.scheme(), "http" | "https") && base.host_str().is_some());
        let Some(base) = base else {
            let message = format!("HF_ENDPOINT `{endpoint}` is no http address");
            return Err(ModelProblem::settings(message)
                .with_hint("leave it out for https://huggingface.co"));
        };
        let token = token.clone().map(|token| (base.clone(), token));
        let client = Client::new(token, Advice::HUB, patience, self.options.stop.clone())?;
        Ok((client, base))
    }
}

/// The address that the files of a revision are below.
pub(super) fn files_of(endpoint: &Url, reference: &Reference) -> Url {
    // A branch may have a slash in its name.
    let revision = reference.revision.replace('/', "%2F");
    let path = format!("{}/resolve/{revision}/", reference.repository());
    endpoint.join(&path).expect("names and revisions are plain text")
}

/// The files of one commit: those that the hub's libraries have fetched whole, and the hub for all others.
struct Source {
    client: Client,
    model: Reference,
    base: Url,
    snapshot: Option<PathBuf>,
    opened: RefCell<BTreeMap<String, Rc<RemoteFile>>>,
}

impl Source {
    fn new(hub: &Hub, model: &Reference, revision: &str) -> Result<Self, ModelProblem> {
        let (client, endpoint) = hub.client(Patience::default())?;
        let base = files_of(&endpoint, &model.at(revision));
        let snapshot = hub.home.snapshot(model, revision);
        Ok(Self { client, model: model.clone(), base, snapshot, opened: RefCell::default() })
    }

    fn url(&self, file: &str) -> Result<Url, ModelProblem> {
        self.base.join(file).map_err(|_| {
            ModelProblem::checkpoint(format!("`{}` names a file `{file}`", self.model))
        })
    }

    /// The whole file in the cache of the hub's libraries.
    fn whole(&self, file: &str) -> Option<PathBuf> {
        self.snapshot.as_ref().map(|folder| folder.join(file)).filter(|path| path.is_file())
    }

    /// Puts a small file into `folder`. Returns whether there is one.
    fn small_file(&self, name: &str, most: u64, folder: &Path) -> Result<bool, ModelProblem> {
        let content = match self.whole(name) {
            Some(path) => Some(files::read_limited(&path, most).map_err(machine)?),
            None => self.client.small(&self.url(name)?, most)?.map(|small| small.bytes),
        };
        if let Some(content) = &content {
            files::write_atomic(&folder.join(name), content).map_err(machine)?;
        }
        Ok(content.is_some())
    }

    fn open(&self, file: &str) -> Result<Rc<RemoteFile>, ModelProblem> {
        if let Some(opened) = self.opened.borrow().get(file) {
            return Ok(Rc::clone(opened));
        }
        let opened = self.client.open(&self.url(file)?)?;
        let opened = Rc::new(opened.ok_or_else(|| no_file(&self.model, file))?);
        self.opened.borrow_mut().insert(file.to_owned(), Rc::clone(&opened));
        Ok(opened)
    }

    /// Hands on ranges of a file, in order.
    fn ranges(
        &self,
        file: &str,
        ranges: &[Range<u64>],
        sink: &mut dyn FnMut(&[u8]) -> Result<(), ModelProblem>,
    ) -> Result<(), ModelProblem> {
        match self.whole(file) {
            Some(path) => copy_ranges(&path, ranges, sink),
            None => self.client.read(&*self.open(file)?, ranges, sink),
        }
    }
}

impl RemoteWeights for Source {
    fn length(&self, file: &str) -> Result<u64, ModelProblem> {
        match self.whole(file) {
            Some(path) => Ok(files::status(&path).map_err(machine)?.len()),
            None => Ok(self.open(file)?.length),
        }
    }

    fn read(&self, file: &str, wanted: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        if self.whole(file).is_none() {
            let opened = self.open(file)?;
            if let Some(bytes) = opened.first.get(wanted.start as usize..wanted.end as usize) {
                return Ok(bytes.to_vec());
            }
        }
        let mut bytes = Vec::with_capacity((wanted.end - wanted.start) as usize);
        self.ranges(file, &[wanted], &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }
}

/// Hands on ranges of a file of this machine.
fn copy_ranges(
    path: &Path,
    ranges: &[Range<u64>],
    sink: &mut dyn FnMut(&[u8]) -> Result<(), ModelProblem>,
) -> Result<(), ModelProblem> {
    let file: File = files::open(path).map_err(machine)?;
    let mut buffer = vec![0; 1 << 20];
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(buffer.len() as u64) as usize;
            let read = file.read_exact_at(&mut buffer[..length], at);
            read.map_err(|error| machine(files::failed("read", path)(error)))?;
            sink(&buffer[..length])?;
            at += length as u64;
        }
    }
    Ok(())
}

fn no_file(model: &Reference, name: &str) -> ModelProblem {
    let problem = ModelProblem::settings(format!("`{model}` has no `{name}`"));
    if name == "model.safetensors" {
        return problem.with_hint("only models with safetensors files can be read from the hub");
    }
    problem.with_hint("check the owner, the name and the revision; is it a model?")
}
