/**
 * `npm run defects`: plants mistakes in a copy of the project, one after the other, and says which of them its tests find. Words choose
 * defects by what they say: `npm run defects -- GEPA page`. `--trusting` takes it that the tests pass without a defect, in half the time.
 */
import { execFileSync, spawn } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { emptyHome } from '../../setup/clean-room.mjs';
import { type Defect, defects } from './defects.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
/** A test that hangs has found the defect. */
const timeoutMs = 240_000;

interface Ran {
  readonly passed: boolean;
  /** The first test that failed, or why there was none. */
  readonly said: string;
  readonly seconds: number;
}

const words = process.argv.slice(2).filter((word) => word !== '--trusting');
const isTrusting = process.argv.includes('--trusting');
/** Runs of the same tests without a defect. */
const undisturbed = new Map<string, Promise<Ran>>();
const chosen = defects.filter(({ what }) => words.length === 0 || words.some((word) => what.includes(word)));
if (chosen.length === 0) throw new Error(`no defect has one of these words: ${words.join(', ')}`);
const files = listFiles();
const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-defects-'));
const copy = path.join(folder, 'project');
let missed = 0;
try {
  for (const file of files) linkInto(file);
  symlinkSync(path.join(root, 'node_modules'), path.join(copy, 'node_modules'));
  const env = { ...process.env, ...emptyHome(folder) };
  for (const defect of chosen) {
    const line = await tryOut(defect, env);
    if (!line.startsWith('found')) missed += 1;
    process.stdout.write(`${line}\n`);
  }
} finally {
  rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
}
process.stdout.write(`${chosen.length - missed} of ${chosen.length} found\n`);
process.exitCode = missed === 0 ? 0 : 1;

async function tryOut(defect: Defect, env: NodeJS.ProcessEnv): Promise<string> {
  const places = files.filter(
    (file) => isProduct(file) && path.basename(file) === defect.file && timesIn(file, defect.text) === 1,
  );
  if (places.length !== 1)
    return `cannot plant: ${defect.what}\n    expected the text once in one ${defect.file}, found it in ${places.length}: write it anew in test/defects/defects.ts`;
  const [place] = places as [string];
  const tests = defect.tests.map((name) => files.filter((file) => isTest(file) && path.basename(file) === name));
  const lacking = defect.tests.filter((_, i) => tests[i]!.length === 0);
  if (lacking.length > 0) return `cannot test: ${defect.what}\n    no test is called ${lacking.join(', ')}`;
  const key = JSON.stringify([tests, defect.only]);
  const before = isTrusting ? null : await (undisturbed.get(key) ?? run(tests.flat(), defect, env));
  if (before) undisturbed.set(key, Promise.resolve(before));
  if (before?.passed === false) return `cannot judge: ${defect.what}\n    its tests fail without it: ${before.said}`;
  const file = path.join(copy, place);
  unlinkSync(file);
  // A function, since a `$` in the text would be read as a pattern.
  writeFileSync(
    file,
    readFileSync(path.join(root, place), 'utf8').replace(defect.text, () => defect.instead),
  );
  const after = await run(tests.flat(), defect, env);
  unlinkSync(file);
  linkInto(place);
  return `${after.passed ? 'MISSED' : 'found '} ${after.seconds.toFixed(0).padStart(3)} s  ${defect.what}  (${after.passed ? tests.flat().join(', ') : after.said})`;
}

/** In a process group of its own, which is ended with all that the tests started. */
function run(tests: readonly string[], { only }: Defect, env: NodeJS.ProcessEnv): Promise<Ran> {
  const startedAt = Date.now();
  const args = ['--import', 'tsx', '--test', '--test-reporter=tap', ...(only ? [`--test-name-pattern=${only}`] : [])];
  const child = spawn(process.execPath, [...args, ...tests], {
    cwd: copy,
    env,
    detached: true,
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  let text = '';
  child.stdout.on('data', (chunk: Buffer) => (text += chunk.toString()));
  return new Promise((resolve, reject) => {
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      endGroup(child.pid);
    }, timeoutMs);
    child.on('error', reject);
    child.on('close', (code) => {
      clearTimeout(timer);
      endGroup(child.pid);
      const failed = [...text.matchAll(/^ *not ok \d+ - (.*)$/gm)].map(([, name]) => name!);
      const ran = Number(/^# pass (\d+)$/m.exec(text)?.[1] ?? 0);
      resolve({
        passed: code === 0 && ran > 0,
        said: isLate ? `did not end within ${timeoutMs / 1000} s` : (failed[0] ?? `no test ran, exit ${code}`),
        seconds: (Date.now() - startedAt) / 1000,
      });
    });
  });
}

function endGroup(pid: number | undefined): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}

function linkInto(file: string): void {
  const to = path.join(copy, file);
  mkdirSync(path.dirname(to), { recursive: true });
  try {
    linkSync(path.join(root, file), to);
  } catch {
    copyFileSync(path.join(root, file), to); // another disk
  }
}

function timesIn(file: string, text: string): number {
  return readFileSync(path.join(root, file), 'utf8').split(text).length - 1;
}

function isTest(file: string): boolean {
  return file.startsWith('test/') && file.endsWith('.test.ts');
}

function isProduct(file: string): boolean {
  return /\.(ts|tsx|mjs)$/.test(file) && !/^(test|bench)\//.test(file);
}

function listFiles(): string[] {
  const listed = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], {
    cwd: root,
    encoding: 'utf8',
    maxBuffer: 2 ** 24,
  });
  return listed.split('\0').filter((file) => file !== '' && existsSync(path.join(root, file)));
}
