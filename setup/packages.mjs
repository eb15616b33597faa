/** Makes node_modules agree with npm-shrinkwrap.json. Runs before anything is installed, so it uses only Node. */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, realpathSync, statfsSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { requirePlatform } from './platform.mjs';

export const projectRoot = dirname(dirname(fileURLToPath(import.meta.url)));

/** node_modules (0.7 GB) and npm's temporary files while it unpacks. */
const bytesNeeded = 1_000_000_000;

/** Users leave when there is no output for longer than this. */
const sayEveryMs = 10_000;

/** @typedef {(line: string) => void} Log */

/**
 * Runs `npm ci` where node_modules is missing or of another lock file or Node; says so in one line, and how long it takes.
 * @param {{ folder?: string, label?: string, log?: Log }} [options]
 * @returns {Promise<void>}
 */
export async function ensurePackages({ folder = projectRoot, label = 'packages', log = printLine } = {}) {
  if (arePackagesInstalled(folder)) {
    log(`${label} ........ ok`);
    return;
  }
  requireFreeSpace(folder);
  log(`${label} ........ installing (npm ci; about half a minute, once)`);
  const startedAtMs = Date.now();
  const elapsed = () => minutes(Date.now() - startedAtMs);
  const timer = setInterval(() => log(`${label} ........ installing; ${elapsed()} elapsed …`), sayEveryMs);
  try {
    await install(folder, log);
  } finally {
    clearInterval(timer);
  }
  writeStamp(folder);
  log(`${label} ........ ${elapsed()}`);
}

/**
 * True when our stamp fits, or when somebody installed by hand exactly what the lock file says.
 * @param {string} folder
 */
export function arePackagesInstalled(folder) {
  if (!existsSync(join(folder, 'node_modules'))) return false;
  const stamp = readText(stampFile(folder));
  if (stamp !== null) return stamp === stampOf(folder);
  if (!agreesWithLock(folder)) return false;
  writeStamp(folder);
  return true;
}

/** @param {string} folder */
const stampFile = (folder) => join(folder, 'node_modules', '.ratchet-stamp');

/** @param {string} folder */
const lockFile = (folder) => join(folder, 'npm-shrinkwrap.json');

/** @param {string} folder */
function stampOf(folder) {
  const sha256 = createHash('sha256')
    .update(readFileSync(lockFile(folder)))
    .digest('hex');
  return `${sha256} node-abi-${process.versions.modules} ${process.platform}-${process.arch}\n`;
}

/** @param {string} folder */
function writeStamp(folder) {
  writeFileSync(stampFile(folder), stampOf(folder));
}

/**
 * npm notes in node_modules what it installed. Optional packages are those of other platforms.
 * @param {string} folder
 */
function agreesWithLock(folder) {
  const wanted = readLock(lockFile(folder));
  const installed = readLock(join(folder, 'node_modules', '.npm-shrinkwrap.json'));
  if (wanted === null || installed === null) return false;
  return Object.entries(wanted).every(
    ([path, { version, optional }]) => path === '' || optional === true || installed[path]?.version === version,
  );
}

/**
 * @param {string} path
 * @returns {Record<string, { version?: string, optional?: boolean }> | null}
 */
function readLock(path) {
  const text = readText(path);
  if (text === null) return null;
  try {
    return JSON.parse(text).packages ?? null;
  } catch {
    return null;
  }
}

/** @param {string} path */
function readText(path) {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return null;
  }
}

/** @param {string} folder */
function requireFreeSpace(folder) {
  const { bavail, bsize } = statfsSync(folder);
  const free = bavail * bsize;
  if (free >= bytesNeeded) return;
  throw new SetupError(
    `${folder} has ${(free / 1e9).toFixed(1)} GB free, the packages need ${(bytesNeeded / 1e9).toFixed(1)} GB; make room and start again.`,
  );
}

/**
 * `npm ci`, or `npm install` of the same versions where npm finds a package of another platform missing from the lock file: registries
 * that mirror only some platforms make lock files with such gaps, and refuse them too.
 * @param {string} folder
 * @param {Log} log
 * @returns {Promise<void>}
 */
async function install(folder, log) {
  const first = await runNpm(['ci'], folder);
  if (first.how === null) return;
  if (!/^npm error Missing: .* from lock file/m.test(first.said)) throw describeFailure(first.said, first.how, folder);
  log('packages of other platforms are missing from npm-shrinkwrap.json; installing the locked versions of the rest');
  const second = await runNpm(['install', '--no-save'], folder);
  if (second.how !== null) throw describeFailure(second.said, second.how, folder);
}

/**
 * @param {readonly string[]} args
 * @param {string} folder
 * @returns {Promise<{ said: string, how: string | null }>} What it printed, and how it failed, if it did.
 */
function runNpm(args, folder) {
  return new Promise((resolve, reject) => {
    const child = spawn('npm', [...args, '--no-audit', '--no-fund', '--loglevel=error'], {
      cwd: folder,
      env: withoutNpmNotices(process.env),
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let said = '';
    const hear = (/** @type {Buffer} */ chunk) => (said = (said + chunk.toString('utf8')).slice(-20_000));
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);
    child.on('error', (error) =>
      reject(new SetupError(`npm could not be started (${error.message}); install Node with npm.`)),
    );
    child.on('close', (code, signal) => resolve({ said, how: code === 0 ? null : (signal ?? `exit code ${code}`) }));
  });
}

/**
 * Variables that `npm start` passes to an inner npm include settings it then warns about; the user's own settings stay.
 * @param {NodeJS.ProcessEnv} env
 */
function withoutNpmNotices(env) {
  const kept = Object.entries(env).filter(
    ([name]) => !/^npm_(config_(_|argv|user_agent)|lifecycle|package|command|execpath)/i.test(name),
  );
  return { ...Object.fromEntries(kept), npm_config_update_notifier: 'false' };
}

/** Advice for npm's errors: the first match counts. */
const advices = /** @type {const} */ ([
  [/EACCES|EPERM/, 'see who owns this folder and its node_modules'],
  [/ENOSPC/, 'make room on the disk'],
  [
    /ETIMEDOUT|ENOTFOUND|ECONN|EAI_AGAIN|network/i,
    'see whether this machine reaches its npm registry (npm ping); behind a proxy: npm config set https-proxy URL',
  ],
]);

/**
 * @param {string} said
 * @param {string} how
 * @param {string} folder
 */
export function describeFailure(said, how, folder) {
  const lines = said
    .replace(/^npm error (?:Clean install a project|Usage:)[^]*/m, '')
    .split('\n')
    .filter((line) => !/^(?:npm error)?\s*$|^npm (?:warn|notice)/i.test(line));
  const advice = advices.find(([pattern]) => pattern.test(said))?.[1] ?? 'see what npm says above';
  return new SetupError(
    [
      `installing the packages in ${folder} failed (${how}). npm's last lines:`,
      ...lines.slice(-8).map((line) => `  ${line}`),
      `What to do: ${advice}, then start again.`,
    ].join('\n'),
  );
}

/** A failure whose message is printed without a stack. */
export class SetupError extends Error {}

/**
 * Runs a setup program: what it throws on purpose becomes a message, the rest stays a bug.
 * @param {() => Promise<number>} program Returns the exit code.
 */
export async function runSetup(program) {
  requirePlatform();
  try {
    process.exitCode = await program();
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    process.stderr.write(`${error.message}\n`);
    process.exitCode = 1;
  }
}

/**
 * Runs a program in the foreground: it has our terminal, hears our signals, and its end is ours.
 * @param {string} command
 * @param {readonly string[]} args
 * @param {{ folder?: string, env?: NodeJS.ProcessEnv }} [options]
 * @returns {Promise<number>} The exit code; 128 + n where signal n ended it.
 */
export function runInForeground(command, args, { folder = process.cwd(), env = process.env } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { cwd: folder, env, stdio: 'inherit' });
    /** @type {(() => void)[]} */
    const undo = [];
    for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) {
      // Ctrl-C in the terminal reaches the child anyway; a second one would count as impatience.
      const forward = () => void ((signal === 'SIGINT' && process.stdin.isTTY) || child.kill(signal));
      process.on(signal, forward);
      undo.push(() => process.off(signal, forward));
    }
    child.on('error', reject);
    child.on('exit', (code, signal) => {
      for (const one of undo) one();
      resolve(code ?? 128 + signalNumber(signal));
    });
  });
}

/** @param {NodeJS.Signals | null} signal */
function signalNumber(signal) {
  return { SIGHUP: 1, SIGINT: 2, SIGKILL: 9, SIGTERM: 15 }[/** @type {'SIGHUP'} */ (signal)] ?? 1;
}

/** @param {number} durationMs */
export function minutes(durationMs) {
  const seconds = Math.floor(durationMs / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}

/** @type {Log} */
function printLine(line) {
  process.stdout.write(`${line}\n`);
}

/** @param {string} moduleUrl */
export function isProgram(moduleUrl) {
  return process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(moduleUrl);
}

if (isProgram(import.meta.url)) {
  await runSetup(async () => {
    await ensurePackages();
    return 0;
  });
}
