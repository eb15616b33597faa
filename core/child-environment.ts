/**
 * What a child process gets to see of our environment. Everything else (cloud credentials, tokens of other tools) stays out, unless a
 * role names it. A name that ends in `*` stands for all names that begin so.
 */
export const environmentForAll: readonly string[] = [
  // Where things are, and how to speak.
  'PATH HOME USER LOGNAME SHELL TMPDIR LANG LC_* TZ TERM NO_COLOR FORCE_COLOR XDG_* RATCHET_CACHE LD_LIBRARY_PATH DYLD_*',
  // How to reach the network from here.
  'HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy',
  'SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE',
  // How to compute.
  'NODE_OPTIONS UV_THREADPOOL_SIZE OMP_* CUDA_* NVIDIA_* VIRTUAL_ENV PYTHONPATH',
].flatMap((names) => names.split(' '));

/** Where workers of our own Temporal server take configs and code from (`engine/trusted-files.ts`); whoever runs code looks there. */
export const trustedRootsVariable = 'RATCHET_TRUSTED_ROOTS';

/** The project's secret (`engine/project-secret.ts`), as the supervisor hands it through the pipe. No process is started with it, vLLM excepted. */
export const secretVariable = 'RATCHET_SECRET';

/** Another file for that secret than the project folder's, for containers that share no such folder. */
export const secretFileVariable = 'RATCHET_SECRET_FILE';

/** Roles read their own settings and reach Temporal; the Temporal server and builds need neither. */
export const environmentForRoles: readonly string[] = [...environmentForAll, 'RATCHET_*', 'TEMPORAL_*'];

/**
 * What is only for those who speak with Temporal: credentials, and the key of its payloads. A process that runs code of a
 * user's, or only computes, does not see them.
 */
export const temporalSecrets: readonly string[] = ['TEMPORAL_API_KEY*', 'TEMPORAL_TLS_*', 'RATCHET_PAYLOAD_KEY*'];

/** The key of a Tinker server: for those who train and sample there. */
export const tinkerVariables: readonly string[] = ['TINKER_API_KEY'];

/** How the AWS chain finds credentials; for roles that reach the store, when it is S3. */
export const environmentForStore: readonly string[] = ['AWS_*'];

/** What W&B's client reads, its key among them, and where `wandb login` may have put it: for the process that feeds metrics, and the client's own. */
export const wandbVariables: readonly string[] = ['WANDB_*', 'NETRC'];

/** What MLflow's client reads, its credentials among them: for the process that feeds metrics. */
export const mlflowVariables: readonly string[] = ['MLFLOW_*'];

/** OpenTelemetry's own, which name a collector and may hold its key: for the process that feeds metrics. */
export const otlpVariables: readonly string[] = ['OTEL_*'];

/** Where notices are posted and what they are signed with, by the names that run files give: for the process that feeds metrics. */
export const notifyVariables: readonly string[] = ['NOTIFY_*'];

/** Of Temporal, of the store and of metrics: no environment has a use for them, whoever names them. */
const keptFromEnvironments: readonly string[] = [
  ...temporalSecrets,
  'TEMPORAL_*',
  'RATCHET_*',
  ...environmentForStore,
  ...wandbVariables,
  ...mlflowVariables,
  ...otlpVariables,
  ...notifyVariables,
  ...tinkerVariables,
];

/** Whether a variable stays with Ratchet though an environment asks for it. A name that ends in `*` stands for all that begin so. */
export function isKeptFromEnvironments(name: string): boolean {
  return matcher(keptFromEnvironments)(name.replace(/\*$/, ''));
}

/** Where Python's installers find packages. */
export const environmentForPython: readonly string[] = ['PIP_*', 'UV_*', 'PYENV_*'];

/**
 * Names of further variables that environments in Python see, such as keys of judges and tools: whoever starts the workers lists
 * them in RATCHET_PYTHON_VARIABLES, separated by commas or blanks.
 */
export function variablesOfEnvironments(from: Readonly<Record<string, string | undefined>>): string[] {
  return (from['RATCHET_PYTHON_VARIABLES'] ?? '').split(/[\s,]+/).filter((name) => name !== '');
}

/** Where datasets and models of environments in Python are kept and fetched from; a token for them is listed by who needs it. */
export const environmentForVerifiers: readonly string[] =
  'HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE HF_HUB_OFFLINE HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE HF_ENDPOINT'.split(
    ' ',
  );

/** The part of `from` that `names` lets through. */
export function selectEnvironment(
  names: readonly string[],
  from: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const passes = matcher(names);
  return Object.fromEntries(
    Object.entries(from).filter((entry): entry is [string, string] => entry[1] !== undefined && passes(entry[0])),
  );
}

/** `from` without what `names` name. */
export function withoutVariables(
  names: readonly string[],
  from: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const isDropped = matcher(names);
  return Object.fromEntries(
    Object.entries(from).filter((entry): entry is [string, string] => entry[1] !== undefined && !isDropped(entry[0])),
  );
}

function matcher(names: readonly string[]): (name: string) => boolean {
  const exact = new Set(names.filter((name) => !name.endsWith('*')));
  const prefixes = names.filter((name) => name.endsWith('*')).map((name) => name.slice(0, -1));
  return (name) => exact.has(name) || prefixes.some((prefix) => name.startsWith(prefix));
}
