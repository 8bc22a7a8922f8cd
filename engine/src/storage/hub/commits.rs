//! Requests the commit of a model's branch from the hub.

use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::home::Home;
use super::reference::{HubReference, is_commit};
use crate::base::environment;
use crate::storage::http::HttpClient;
use crate::storage::http::answers::ServerKind;
use crate::storage::hub::Hub;

const CONFIG: &str = "config.json";
const MAX_CONFIG_BYTES: u64 = 16 << 20;

impl Hub {
    pub(super) fn request_model_commit(
        &self,
        model: &HubReference,
    ) -> Result<String, ModelProblem> {
        let (client, endpoint) = self.client()?;
        let url = files_of(&endpoint, model).join(CONFIG).expect("a plain name");
        let answer = client.small(&url, MAX_CONFIG_BYTES)?.ok_or_else(|| {
            ModelProblem::settings(format!("`{model}` has no file `{CONFIG}`"))
                .with_hint("check the owner, the name and the revision; is it a model?")
        })?;
        let commit = answer.headers.get("x-repo-commit").and_then(|value| value.to_str().ok());
        if let Some(commit) = commit.filter(|commit| is_commit(commit)) {
            return Ok(commit.to_owned());
        }
        let message =
            format!("`{}` does not send the commit of `{}`", self.home.endpoint, model.revision);
        Err(ModelProblem::settings(message)
            .with_hint(format!("name the commit: `hf://{}@<commit>`", model.repository())))
    }

    pub(crate) fn client(&self) -> Result<(HttpClient, Url), ModelProblem> {
        let Home { endpoint, token, .. } = &self.home;
        let base = Url::parse(&format!("{endpoint}/"))
            .ok()
            .filter(|base| matches!(base.scheme(), "http" | "https") && base.host_str().is_some());
        let Some(base) = base else {
            // Without a scheme, user and password would not be detected in the value.
            return Err(ModelProblem::settings("HF_ENDPOINT is not an http address")
                .with_hint("unset it for https://huggingface.co"));
        };
        let has_user = !base.username().is_empty() || base.password().is_some();
        let wrong = match token {
            Some(_) if has_user => Err("HF_ENDPOINT has a user, and HF_TOKEN is set".to_owned()),
            Some(token) => environment::check_header("HF_TOKEN", token),
            None => Ok(()),
        };
        let wrong = wrong.and_then(|()| match base.query() {
            Some(_) => Err("HF_ENDPOINT has a query, which is not used".to_owned()),
            None => Ok(()),
        });
        wrong.map_err(|why| {
            ModelProblem::settings(why).with_hint(
                "correct or unset the variable; a token may also come from `hf auth login`",
            )
        })?;
        let token = token.clone().map(|token| (base.clone(), token));
        Ok((HttpClient::new(token, ServerKind::HUB, self.options.stop.clone())?, base))
    }
}

/// Returns the parent address of the files of a revision.
pub(crate) fn files_of(endpoint: &Url, reference: &HubReference) -> Url {
    // A branch name may contain a slash.
    let revision = reference.revision.replace('/', "%2F");
    let path = format!("{}/resolve/{revision}/", reference.repository());
    endpoint.join(&path).expect("names and revisions are plain text")
}
