/**
 * `npm test`: packages, a Temporal CLI, an S3 server, then the faster tests: unit, workflow and some end-to-end tests.
 * `npm run test:all`: all tests. `npm test -- e2e`: only those against a real server; `faults`: the fault matrix;
 * `engines`: real engines; `PATH…`: only those files or folders. The last line is `N passed, N failed`. Tests run with
 * their own home; one that writes there, or in the project, fails the run.
 */
import { execFile, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { downloadCaches, emptyHome } from './clean-room.mjs';
import { ensurePackages, isProgram, projectRoot, runSetup, SetupError } from './packages.mjs';
import { allowedInProject, filesBelow, strays } from './strays.mjs';

/** @typedef {import('./test-counts-reporter.mjs').TestCounts} TestCounts */
/** @typedef {{ units: string[], endToEnd: string[] }} TestFiles */

/** A test that hangs is a failure, not a lost night. */
const timeoutMs = { quick: 900_000, matrix: 4 * 3_600_000 };

const usage = `npm test                  the quick tests
npm run test:all          everything, slow tests included
npm test -- e2e           all that needs a real server
npm test -- faults        the whole fault matrix
npm test -- engines       real engines
npm test -- PATH…         only these files or folders
`;

/**
 * Processes side by side, two more than there are cores: about half of the time of a test is waiting, for heartbeats, timeouts and processes
 * that start. Tests of one process always run one after another. A cell of the fault matrix says how long its run took, so it runs alone.
 */
const concurrency = { quick: Math.min(4, availableParallelism() + 2), matrix: 1 };

/** Building tests takes as long as loading about three of them from source. */
const worthBuilding = 4;

/**
 * @param {readonly string[]} wanted
 * @returns {Promise<number>}
 */
async function testAll(wanted) {
  if (wanted.includes('--help')) {
    process.stdout.write(usage);
    return 0;
  }
  const files = chooseTests(wanted, findTests(join(projectRoot, 'test')));
  await ensurePackages();
  const temporalCli = await ensureTemporalCli();
  // Without a CLI it prints why, and the tests that need one are skipped.
  if ([...files.units, ...files.endToEnd].some((file) => isMatrix(file) || /[/]s3-[^/]*$/.test(file)))
    await ensureProgram('test/store/s3-gateway.ts');
  const packages = pythonPackagesOf([...files.units, ...files.endToEnd]);
  if (packages.length > 0) await ensureProgram('test/python-here.ts', packages);
  const areLong = files.endToEnd.filter((file) => isMatrix(file) || isEngine(file));
  const quick = [...files.units, ...files.endToEnd.filter((file) => !areLong.includes(file))];
  const programs = quick.length >= worthBuilding ? await buildTests(quick) : quick;
  const counts = await inOwnHome(async (own) => {
    const env = { ...process.env, ...own, RATCHET_TEMPORAL_CLI: temporalCli };
    const run = (/** @type {readonly string[]} */ some, /** @type {keyof typeof timeoutMs} */ kind) =>
      runTests(some, { timeout: timeoutMs[kind], atOnce: concurrency[kind], env });
    return [await run(programs, 'quick'), await run(areLong, 'matrix')];
  });
  const sum = (/** @type {keyof TestCounts} */ key) => counts.reduce((total, one) => total + one[key], 0);
  if (sum('skipped') > 0) process.stdout.write(`${sum('skipped')} skipped\n`);
  process.stdout.write(`${sum('passed')} passed, ${sum('failed')} failed\n`);
  return sum('failed') === 0 ? 0 : 1;
}

/** @param {string} file */
const isMatrix = (file) => file.endsWith('.faults.test.ts');

/** Finds the requirements files that tests name. @param {readonly string[]} files */
export function pythonPackagesOf(files) {
  const named = files.flatMap((file) => readFileSync(file, 'utf8').match(/(?<=')[\w-]+-requirements\.txt(?=')/g) ?? []);
  return [...new Set(named)].sort();
}

/** Against real engines, which are installed first. @param {string} file */
const isEngine = (file) => file.endsWith('.engines.test.ts');

/** Rarely fails, or takes minutes: only with all others. @param {string} file */
const isSlow = (file) => file.endsWith('.slow.test.ts');

/**
 * Files to run: the faster ones, all, those against a real server, or those named.
 * @param {readonly string[]} wanted
 * @param {readonly string[]} all
 * @returns {TestFiles}
 */
export function chooseTests(wanted, all) {
  const isEndToEnd = (/** @type {string} */ file) =>
    file.endsWith('.e2e.test.ts') ||
    /[/](?:e2e|faults)[/].*\.slow\.test\.ts$/.test(file) ||
    isMatrix(file) ||
    isEngine(file);
  const fallback = all.filter((file) => !isMatrix(file) && !isEngine(file));
  const [word] = wanted.length === 1 ? wanted : [];
  if (word === 'e2e') return { units: [], endToEnd: fallback.filter(isEndToEnd) };
  if (word === 'faults') return { units: [], endToEnd: all.filter(isMatrix) };
  if (word === 'engines') return { units: [], endToEnd: all.filter(isEngine) };
  const places = wanted.map((place) => resolve(place));
  for (const [i, place] of word === 'all' ? [] : places.entries()) {
    if (!all.some((file) => isWithin(file, place))) throw new SetupError(`there is no test in ${wanted[i]}`);
  }
  const named = () => all.filter((file) => places.some((place) => isWithin(file, place)));
  const chosen = word === 'all' ? all : wanted.length === 0 ? fallback.filter((file) => !isSlow(file)) : named();
  return { units: chosen.filter((file) => !isEndToEnd(file)), endToEnd: chosen.filter(isEndToEnd) };
}

/**
 * @param {string} file
 * @param {string} place
 */
const isWithin = (file, place) => file === place || file.startsWith(`${place}/`);

/**
 * Every `*.test.ts` below a folder, sorted. (Node 20's runner takes no globs.)
 * @param {string} folder
 * @returns {string[]}
 */
export function findTests(folder) {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.test.ts'))
    .map((name) => join(folder, name))
    .filter((path) => statSync(path).isFile())
    .sort();
}

/**
 * Runs tests with an empty home of their own and the user's Ratchet cache. Files that they leave in that home or in the project count as
 * one more failure.
 * @param {(env: NodeJS.ProcessEnv) => Promise<TestCounts[]>} tests
 * @param {{ project?: string, isAlone?: boolean, say?: (text: string) => void }} [options] isAlone: no other process edits the project
 * @returns {Promise<TestCounts[]>}
 */
export async function inOwnHome(tests, options = {}) {
  const { project = projectRoot, isAlone = Boolean(process.env['CI']) } = options;
  const { say = (text) => process.stdout.write(text) } = options;
  const folder = mkdtempSync(join(tmpdir(), 'ratchet-home-'));
  try {
    const cache = await ourCache();
    const caches = await downloadCaches(process.env, folder);
    const home = emptyHome(folder);
    const inProject = () => filesBelow(project, ['node_modules', '.git']);
    const before = inProject();
    const vllm = join(folder, 'vllm'); // by default it is in the home
    const counts = await tests({ ...caches, ...home, RATCHET_CACHE: cache, VLLM_CACHE_ROOT: vllm });
    const inHome = strays(new Map(), filesBelow(home.HOME)).map((file) => `~/${file}`);
    const changed = strays(before, inProject(), allowedInProject);
    const left = [...inHome, ...changed].map((file) => `  ${file}\n`).join('');
    if (left === '') return counts;
    const byWhom = isAlone ? '' : '; those of the project may be your own changes';
    say(`Tests must write only in their own folders; found in the home (~) and the project${byWhom}:\n${left}`);
    return inHome.length > 0 || isAlone ? [...counts, { passed: 0, failed: 1, skipped: 0 }] : counts;
  } finally {
    rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
  }
}

/** Returns the cache of this user's programs and Python packages, which tests share. @returns {Promise<string>} */
function ourCache() {
  return new Promise((done, fail) => {
    const program = "import { cacheFolder } from './host/cache-folder.ts'; process.stdout.write(cacheFolder());";
    const args = ['--import', 'tsx', '--input-type=module', '--eval', program];
    execFile(process.execPath, args, { cwd: projectRoot }, (error, stdout) => (error ? fail(error) : done(stdout)));
  });
}

/** @returns {Promise<string>} */
async function ensureTemporalCli() {
  const path = await ensureProgram('workers/temporal/temporal-cli.ts');
  if (path === null) throw new SetupError('the tests need a Temporal CLI (see above)');
  return path;
}

/**
 * Runs a file of ours that gets a program into the cache and prints its path; null when it could not.
 * @param {string} file
 * @param {readonly string[]} [args]
 * @returns {Promise<string | null>}
 */
function ensureProgram(file, args = []) {
  return new Promise((done) => {
    const command = ['--import', 'tsx', file, ...args];
    const child = execFile(process.execPath, command, { cwd: projectRoot }, (error, stdout) =>
      done(error ? null : stdout.trim() || null),
    );
    child.stderr?.pipe(process.stderr);
  });
}

/**
 * Returns programs that run the same tests, those that take longest first: see `test/build-tests.mjs`.
 * @param {readonly string[]} files
 * @returns {Promise<string[]>}
 */
function buildTests(files) {
  const names = files.map((file) => relative(projectRoot, file));
  return new Promise((done, fail) => {
    const args = ['test/build-tests.mjs', ...names];
    execFile(process.execPath, args, { cwd: projectRoot, maxBuffer: 2 ** 24 }, (error, stdout, stderr) =>
      error ? fail(new SetupError(`the tests could not be built: ${stderr}`)) : done(JSON.parse(stdout)),
    );
  });
}

/**
 * @param {readonly string[]} files in the order in which they start
 * @param {{ timeout: number, atOnce: number, env: NodeJS.ProcessEnv }} options
 * @returns {Promise<TestCounts>}
 */
async function runTests(files, { timeout, atOnce, env }) {
  if (files.length === 0) return { passed: 0, failed: 0, skipped: 0 };
  const folder = mkdtempSync(join(tmpdir(), 'ratchet-test-'));
  try {
    const countsFile = join(folder, 'counts.json');
    const orders = join(folder, 'orders.json');
    writeFileSync(orders, JSON.stringify({ files, atOnce, timeout, countsFile }));
    const loading = files.some((file) => file.endsWith('.ts')) ? ['--import', 'tsx'] : ['--enable-source-maps'];
    const timing = env['RATCHET_TEST_TIMES'] ? ['--import', new URL('./test-times.mjs', import.meta.url).href] : [];
    const runner = fileURLToPath(new URL('./run-tests.mjs', import.meta.url));
    // Node passes the options of the runner on to the process of each file.
    const options = [...timing, ...loading, `--test-timeout=${timeout}`];
    const code = await spawnRunner([...options, runner, orders], env);
    const counts = readCounts(countsFile);
    // A runner that dies, or fails without naming a test, is a failure too.
    return code !== 0 && counts.failed === 0 ? { ...counts, failed: 1 } : counts;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * @param {string} path
 * @returns {TestCounts}
 */
function readCounts(path) {
  try {
    return JSON.parse(readFileSync(path, 'utf8'));
  } catch {
    return { passed: 0, failed: 1, skipped: 0 };
  }
}

/**
 * @param {readonly string[]} args
 * @param {NodeJS.ProcessEnv} env
 * @returns {Promise<number>}
 */
function spawnRunner(args, env) {
  return new Promise((done, fail) => {
    const child = spawn(process.execPath, args, { cwd: projectRoot, env, stdio: ['ignore', 'inherit', 'inherit'] });
    child.on('error', fail);
    child.on('exit', (code) => done(code ?? 1));
  });
}

if (isProgram(import.meta.url)) await runSetup(() => testAll(process.argv.slice(2)));
