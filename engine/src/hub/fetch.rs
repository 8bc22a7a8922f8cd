//! Asks the hub: which commit the branch of a model has, and the model's files.

use std::path::PathBuf;
use std::rc::Rc;

use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::home::Home;
use super::reference::is_commit;
use super::{Hub, Reference};
use crate::http::{Client, Patience, ServerKind};
use crate::remote_model::Wanted;
use crate::remote_model::folder::Partial;
use crate::remote_model::slice::{SMALL_FILES, Source, fetch_model, fetch_tokenizer};
use crate::remote_model::web::Web;

impl Hub {
    /// Asks which commit a branch or tag of a model has.
    pub(super) fn ask_commit_of_model(&self, model: &Reference) -> Result<String, ModelProblem> {
        let (config, most) = SMALL_FILES[0];
        let source = self.source(model, &model.revision)?;
        let answer = source.client.small(&source.url(config)?, most)?;
        let answer = answer.ok_or_else(|| source.no_file(config))?;
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
        let partial = Partial::begin(&self.repository(model)).map_err(one)?;
        // Another process may have fetched it while this one waited.
        if let Some(folder) = self.present(model, commit, wanted) {
            return Ok(folder);
        }
        let source = Rc::new(self.source(model, commit).map_err(one)?);
        if wanted == Wanted::Tokenizer {
            fetch_tokenizer(&*source, &partial)?;
            return partial.finish(&format!("{commit}-tokenizer")).map_err(one);
        }
        let fetched = fetch_model(&source, &partial)?;
        let name = model.at(commit).to_string();
        partial.finish_slice(commit, &name, Some(&self.home.endpoint), &fetched).map_err(one)
    }

    /// The files of a revision: those that the hub's libraries have fetched whole, and the hub for all others.
    fn source(&self, model: &Reference, revision: &str) -> Result<Web, ModelProblem> {
        let (client, endpoint) = self.client(Patience::default())?;
        let base = files_of(&endpoint, &model.at(revision));
        let hint = "check the owner, the name and the revision; is it a model?";
        let mut source = Web::new(model.to_string(), hint, client, base);
        source.whole = self.home.snapshot(model, revision);
        Ok(source)
    }

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
        let client = Client::new(token, ServerKind::HUB, patience, self.options.stop.clone())?;
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
