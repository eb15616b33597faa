/** What deploy/Dockerfile does after the packages are installed, done in a folder as an image has it. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, statSync, symlinkSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '../workers/fixtures/processes.ts';
import { repositoryFolder } from './small-run.ts';

const dockerfile = readFileSync(path.join(repositoryFolder, 'deploy/Dockerfile'), 'utf8');
const ignored = new Set(
  readFileSync(path.join(repositoryFolder, 'deploy/Dockerfile.dockerignore'), 'utf8')
    .split('\n')
    .map((line) => line.replace(/^\*\*\//, '')),
);

test('the programs of an image are built with it, and nothing is written to the image when they run', (t) => {
  const image = path.join(temporaryFolder(t), 'ratchet');
  mkdirSync(image);
  for (const name of readdirSync(repositoryFolder).filter((one) => !ignored.has(one)))
    cpSync(path.join(repositoryFolder, name), path.join(image, name), { recursive: true });
  const packages = path.join(image, 'node_modules');
  mkdirSync(packages);
  for (const name of readdirSync(path.join(repositoryFolder, 'node_modules')).filter((one) => one !== '.cache'))
    symlinkSync(path.join(repositoryFolder, 'node_modules', name), path.join(packages, name));

  const build = /^RUN (find [^]*?[^\\])$/m.exec(dockerfile)![1]!;
  execFileSync('sh', ['-ec', build], { cwd: image, stdio: 'pipe' });

  const cache = path.join(packages, '.cache/ratchet');
  const current = readdirSync(cache).find((name) => name.startsWith('current-'))!;
  const { sources } = JSON.parse(readFileSync(path.join(cache, current), 'utf8')) as {
    sources: Record<string, string>;
  };
  for (const [file, state] of Object.entries(sources))
    assert.match(state, /^\d+000:/, `a layer would cut the time of ${file}, and it would be built again at each start`);
  const ofOthers = 0o004;
  for (const file of readdirSync(cache, { recursive: true, encoding: 'utf8' }))
    assert.ok(statSync(path.join(cache, file)).mode & ofOthers, `${file} can be read by the user of the image`);

  const before = filesOf(image);
  const home = temporaryFolder(t);
  const env = { PATH: process.env['PATH'], HOME: home, NODE_COMPILE_CACHE: path.join(home, 'compiled') };
  for (const command of unitCommands())
    execFileSync(process.execPath, [...command, '--help'], { cwd: image, env, stdio: 'pipe' });
  assert.deepEqual(filesOf(image), before);
});

/** What the units of deploy/systemd start, without Node. */
function unitCommands(): readonly (readonly string[])[] {
  const folder = path.join(repositoryFolder, 'deploy/systemd');
  const units = readdirSync(folder).filter((name) => name.endsWith('.service'));
  const commands = units.map(
    (name) => /^ExecStart=\S+ (.*)$/m.exec(readFileSync(path.join(folder, name), 'utf8'))![1]!,
  );
  return commands.map((command) => command.replace('%i', 'rollout').split(' '));
}

/** Every file, with its time of change. */
function filesOf(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath ?? entry.path, entry.name))
    .map((file) => `${file} ${statSync(file).mtimeMs}`)
    .sort();
}
