/**
 * Variables of our environment that every child process sees. Everything else (cloud credentials, tokens of other
 * tools) stays out unless a role names it. A name that ends in `*` matches all names with that beginning.
 */
export const environmentForAll: readonly string[] = [
  // Paths and locale.
  'PATH HOME USER LOGNAME SHELL TMPDIR LANG LC_* TZ TERM NO_COLOR FORCE_COLOR XDG_* RATCHET_CACHE LD_LIBRARY_PATH DYLD_*',
  // Network access.
  'HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy',
  'SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE',
  'NODE_OPTIONS UV_THREADPOOL_SIZE OMP_* CUDA_* NVIDIA_* VIRTUAL_ENV PYTHONPATH',
].flatMap((names) => names.split(' '));

/**
 * Places from which workers of our own Temporal server take configs and code (`host/trusted-files.ts`); checked before
 * code runs.
 */
export const trustedRootsVariable = 'RATCHET_TRUSTED_ROOTS';

/**
 * The project's secret (`host/project-secret.ts`), passed by the supervisor through the pipe. No process gets it in its
 * environment, except vLLM.
 */
export const secretVariable = 'RATCHET_SECRET';

/** Names another file for that secret, for containers that do not share the project folder. */
export const secretFileVariable = 'RATCHET_SECRET_FILE';

/** Roles read their own settings and reach Temporal; the Temporal server and builds need neither. */
export const environmentForRoles: readonly string[] = [...environmentForAll, 'RATCHET_*', 'TEMPORAL_*'];

/**
 * Variables only for Temporal clients: credentials, and the key of payloads. A process that runs a user's code, or only
 * computes, does not see them.
 */
export const temporalSecrets: readonly string[] = ['TEMPORAL_API_KEY*', 'TEMPORAL_TLS_*', 'RATCHET_PAYLOAD_KEY*'];

/** The key of a Tinker server: for processes that train and sample there. */
export const tinkerVariables: readonly string[] = ['TINKER_API_KEY'];

/** Address at which a trainer's nodes join the first one, in the variables of torch.distributed; for GPU workers. */
export const nodeVariables: readonly string[] = ['MASTER_ADDR', 'MASTER_PORT'];

/** Variables of the AWS chain for credentials; for roles that reach the store, when it is S3. */
export const environmentForStore: readonly string[] = ['AWS_*'];

/**
 * Variables of W&B's client, with its key and the place where `wandb login` may have stored it: only for the metrics
 * process and the client.
 */
export const wandbVariables: readonly string[] = ['WANDB_*', 'NETRC'];

/** Variables of MLflow's client, with its credentials: only for the metrics process. */
export const mlflowVariables: readonly string[] = ['MLFLOW_*'];

/** OpenTelemetry's own variables, which name a collector and may hold its key: for the metrics process. */
export const otlpVariables: readonly string[] = ['OTEL_*'];

/** Addresses and signing keys of notices, by the names in run files: only for the metrics process. */
export const notifyVariables: readonly string[] = ['NOTIFY_*'];

/** Variables of Temporal, the store and metrics: no environment needs them, even if a file names them. */
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

/**
 * Whether environments may not have a variable even on request. A name that ends in `*` matches all names with that
 * beginning.
 */
export function isKeptFromEnvironments(name: string): boolean {
  return matcher(keptFromEnvironments)(name.replace(/\*$/, ''));
}

/** Settings of Python's installers for the source of packages. */
export const environmentForPython: readonly string[] = ['PIP_*', 'UV_*', 'PYENV_*'];

/**
 * Further variables for environments in Python, such as keys of judges and tools. They are listed in
 * RATCHET_PYTHON_VARIABLES of the workers' environment, separated by commas or spaces.
 */
export function variablesOfEnvironments(from: Readonly<Record<string, string | undefined>>): string[] {
  return (from['RATCHET_PYTHON_VARIABLES'] ?? '').split(/[\s,]+/).filter((name) => name !== '');
}

/** Locations of datasets and models for environments in Python; a token for them must be listed separately. */
export const environmentForVerifiers: readonly string[] =
  'HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE HF_HUB_OFFLINE HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE HF_ENDPOINT'.split(
    ' ',
  );

/** The variables of `from` that match `names`. */
export function selectEnvironment(
  names: readonly string[],
  from: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const passes = matcher(names);
  return Object.fromEntries(
    Object.entries(from).filter((entry): entry is [string, string] => entry[1] !== undefined && passes(entry[0])),
  );
}

/** `from` without the variables that match `names`. */
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
