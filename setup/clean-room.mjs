/**
 * `node setup/clean-room.mjs COMMAND…` runs a command as on a machine where Ratchet never ran. The home and every cache are new and empty,
 * and no setting of Ratchet's is set. Only the download caches of package managers are passed in. The room is removed afterwards; the exit
 * code is the command's.
 */
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { isProgram, runInForeground, runSetup, SetupError } from './packages.mjs';

/** Variables that Ratchet reads, or that move the folders of its libraries. */
const keptOut =
  /^(?:RATCHET|TEMPORAL|AWS|WANDB|MLFLOW|OTEL|NOTIFY|TINKER|OPENAI|HF|HUGGINGFACE|TRANSFORMERS|TORCH)_|^(?:NETRC|MPLCONFIGDIR|XDG_RUNTIME_DIR)$/;

/**
 * Returns the environment variables of a room in `folder`.
 * @param {string} folder
 * @param {NodeJS.ProcessEnv} [env]
 * @returns {Promise<NodeJS.ProcessEnv>}
 */
export async function cleanRoom(folder, env = process.env) {
  const kept = Object.fromEntries(Object.entries(env).filter(([name]) => !keptOut.test(name)));
  return { ...kept, ...(await downloadCaches(env, folder)), ...emptyHome(folder) };
}

/**
 * Creates a home in `folder`, and returns the variables that name it.
 * @param {string} folder
 */
export function emptyHome(folder) {
  const home = join(folder, 'home');
  mkdirSync(home, { recursive: true, mode: 0o700 });
  return {
    HOME: home,
    XDG_CACHE_HOME: join(home, '.cache'),
    XDG_CONFIG_HOME: join(home, '.config'),
    XDG_DATA_HOME: join(home, '.local', 'share'),
    XDG_STATE_HOME: join(home, '.local', 'state'),
  };
}

/**
 * Returns variables that name the download caches of this machine's package managers, and the settings by which each reaches its index, as
 * each client reports them. Variables that are set already stay.
 * @param {NodeJS.ProcessEnv} env
 * @param {string} folder for what a client keeps of having been asked
 * @returns {Promise<Record<string, string>>}
 */
export async function downloadCaches(env, folder) {
  const ask = (/** @type {string} */ command, /** @type {readonly string[]} */ args) =>
    answer(command, args, { ...env, TEST_TELEMETRY_DIR: join(folder, 'counters') });
  const [cache, userconfig, pipCache, pipConfig, uvCache, go] = await Promise.all([
    ask('npm', ['config', 'get', 'cache']),
    ask('npm', ['config', 'get', 'userconfig']),
    ask('python3', ['-m', 'pip', 'cache', 'dir']),
    ask('python3', ['-m', 'pip', 'config', 'debug']),
    ask('uv', ['cache', 'dir']),
    ask('go', ['env', '-json', 'GOMODCACHE', 'GOCACHE', 'GOENV']),
  ]);
  /** @type {Record<string, string | undefined>} */
  const found = {
    npm_config_cache: cache,
    npm_config_userconfig: isThere(userconfig),
    PIP_CACHE_DIR: pipCache,
    PIP_CONFIG_FILE: userConfigOfPip(pipConfig),
    UV_CACHE_DIR: uvCache,
    ...(go === undefined ? {} : JSON.parse(go)),
    // Programs that a version manager keeps in the home count as installed on this machine.
    PYENV_ROOT: isThere(join(homedir(), '.pyenv')),
    RUSTUP_HOME: isThere(join(homedir(), '.rustup')),
  };
  return Object.fromEntries(
    Object.entries(found).flatMap(([name, value]) => {
      const kept = env[name] || value;
      return kept ? [[name, kept]] : [];
    }),
  );
}

/** @param {string | undefined} path */
const isThere = (path) => (path !== undefined && existsSync(path) ? path : undefined);

/**
 * Reads where pip's user configuration is. pip lists the files by kind; among the user's own the later has priority.
 * @param {string | undefined} debug what `pip config debug` prints
 */
export function userConfigOfPip(debug) {
  const ofUser = /^user:\n((?: .*\n?)*)/m.exec(debug ?? '')?.[1] ?? '';
  return [...ofUser.matchAll(/^ {2}(\S.*), exists: True$/gm)].at(-1)?.[1];
}

/**
 * Returns what a program prints; undefined if it is missing or fails.
 * @param {string} command
 * @param {readonly string[]} args
 * @param {NodeJS.ProcessEnv} env
 * @returns {Promise<string | undefined>}
 */
function answer(command, args, env) {
  return new Promise((done) => {
    execFile(command, [...args], { env, timeout: 60_000 }, (error, stdout) => done(error ? undefined : stdout.trim()));
  });
}

/**
 * @param {readonly string[]} command
 * @returns {Promise<number>}
 */
async function runInRoom([command, ...args]) {
  if (command === undefined) throw new SetupError('usage: node setup/clean-room.mjs COMMAND…, such as npm test');
  const folder = mkdtempSync(join(tmpdir(), 'ratchet-room-'));
  try {
    return await runInForeground(command, args, { env: await cleanRoom(folder) });
  } finally {
    rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
  }
}

if (isProgram(import.meta.url)) await runSetup(() => runInRoom(process.argv.slice(2)));
