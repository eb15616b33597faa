/**
 * Commands that a run suggests work as printed: after it has finished, failed, been refused, paused, cancelled or left.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, rm, truncate, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { fakeRun } from '../faults/fake-run.ts';
import { RunningCommand, thisVersion } from '../faults/upgrade.ts';
import { openSmallProject, repositoryFolder, smallRun, type SmallProject } from './small-run.ts';

const cli = path.join(repositoryFolder, 'cli/ratchet.mjs');
const failingTrainer = fileURLToPath(new URL('failing-trainer.ts', import.meta.url));

/** The demo, small: two steps. */
const demo = smallRun
  .replace('max_steps = 12', 'max_steps = 2')
  .replace('batch_size = 32', 'batch_size = 16')
  .replace('steps = 60', 'steps = 40')
  .replace(/\[eval\][^[]*/, '');

let project: SmallProject;
before(async () => {
  project = await openSmallProject({ 'words.toml': demo });
});
after(() => project?.close());

function environmentOfUser(): NodeJS.ProcessEnv {
  const environment: NodeJS.ProcessEnv = { ...process.env, RATCHET_CODE_ROOTS: path.join(repositoryFolder, 'test') };
  delete environment['TEMPORAL_ADDRESS'];
  return environment;
}

function begin(line: string, folder = project.folder): RunningCommand {
  return new RunningCommand(thisVersion, line.split(' '), { folder, environment: environmentOfUser() });
}

interface Typed {
  readonly code: number;
  readonly said: string;
}

/** Into a shell, as a person does who copies it: only npx, which would look for a package, is left out. */
function type(line: string, folder = project.folder): Promise<Typed> {
  assert.match(line, /^npx ratchet-rl /, 'it can be typed in a clone');
  const command = line.replace('npx ratchet-rl', `"${process.execPath}" "${cli}"`);
  return new Promise((resolve) => {
    execFile('sh', ['-c', command], { cwd: folder, env: environmentOfUser() }, (error, out, err) =>
      resolve({ code: error === null ? 0 : Number(error.code), said: out + err }),
    );
  });
}

/** Every command in it, up to what is said about that. */
function suggestedIn(said: string): string[] {
  const commands = said.matchAll(
    /\bnpx ratchet-rl ([a-z]+ .*?)(?=$| {2,}|[`);,…]|\. | continues| lists | says | and )/gm,
  );
  return [...new Set([...commands].map(([command]) => command))];
}

async function allWork(lines: readonly string[], folder = project.folder): Promise<void> {
  for (const line of lines) {
    const { code, said } = await type(line, folder);
    assert.equal(code, 0, `${line}\n${said}`);
  }
}

/** A run of fakes, which costs next to nothing; `more` is laid over its file. */
async function writeFake(name: string, steps: number, { failsAt = null as number | null, sampleMs = 20 } = {}) {
  const flag = path.join(project.folder, `${name}.fails`);
  if (failsAt !== null) await writeFile(flag, String(failsAt));
  const trainer = `[trainer]\nkind = "module"\nimport = ${JSON.stringify(failingTrainer)}\noptions = { failsAt = ${JSON.stringify(flag)} }\n`;
  const file = fakeRun({ log: path.join(project.folder, `${name}.sampled`), steps, sampleMs });
  await writeFile(
    path.join(project.folder, `${name}.toml`),
    file.replace(/\[trainer\][^[]*/, () => trainer),
  );
  return { mend: () => rm(flag) };
}

test('of a run that has finished: more steps, and afresh', async () => {
  const { code, said } = await type('npx ratchet-rl train words.toml');
  assert.equal(code, 0, said);
  const suggested = suggestedIn(said);
  assert.deepEqual(suggested, [
    'npx ratchet-rl chat words',
    'npx ratchet-rl train words.toml --max-steps 4',
    'npx ratchet-rl train words.toml --fresh',
  ]);
  const [, further, afresh] = suggested as [string, string, string];

  const more = await type(further);
  assert.equal(more.code, 0, more.said);
  assert.match(more.said, /done: step 4 of 4/);
  const again = await type(afresh);
  assert.equal(again.code, 0, again.said);
  assert.match(again.said, /done: step 2 of 2/);

  const status = await type('npx ratchet-rl status words');
  assert.deepEqual(suggestedIn(status.said), ['npx ratchet-rl train words.toml --name words --max-steps 8']);
  await allWork(suggestedIn(status.said));
});

test('of a step that cannot be reached: those that can, and from where it stands', async () => {
  await writeFake('far', 2);
  await allWork(['npx ratchet-rl train far.toml']);
  const { code, said } = await type('npx ratchet-rl train far.toml --resume.step 99');
  assert.equal(code, 1, said);
  const suggested = suggestedIn(said);
  assert.deepEqual(suggested, [
    'npx ratchet-rl train far.toml --resume.step N',
    'npx ratchet-rl checkpoints far',
    'npx ratchet-rl train far.toml',
  ]);
  await allWork(suggested.map((line) => line.replace('step N', 'step 2')));
});

test('of a commit that cannot be read: the check that sets it aside, and then the run', async () => {
  await writeFake('torn', 4);
  await allWork(['npx ratchet-rl train torn.toml']);
  await truncate(path.join(project.folder, 'outputs/torn/lineages/main/steps/step_4.json'), 10);
  const failed = await type('npx ratchet-rl train torn.toml --max-steps 6');
  assert.equal(failed.code, 1, failed.said);
  const [check, goOn, ...rest] = suggestedIn(failed.said);
  assert.deepEqual(
    [check, goOn, ...rest],
    ['npx ratchet-rl fsck torn', 'npx ratchet-rl train torn.toml --max-steps 6'],
  );

  const checked = await type(check!);
  const repair = suggestedIn(checked.said).find((line) => line.endsWith('--repair'))!;
  assert.equal(repair, 'npx ratchet-rl fsck torn --repair', checked.said);
  await allWork([repair, goOn!]);
});

test('of a run that is paused: its state, and to resume it', async () => {
  const { mend } = await writeFake('paused', 3, { failsAt: 2 });
  const training = begin('train paused.toml');
  await training.says(/ paused: /);
  const status = await type('npx ratchet-rl status paused');
  const suggested = suggestedIn(status.said);
  assert.deepEqual(suggested, ['npx ratchet-rl resume paused'], status.said);
  await mend();
  await allWork(suggested);
  assert.equal(await training.ended, 0, training.said);
});

test('of a run that is watched: its settings, coming back to it, and running once it was cancelled', async () => {
  await writeFake('watched', 400, { sampleMs: 200 });
  const training = begin('train watched.toml');
  await training.says(/ step \d+ of 400/); // a busy machine follows a run from a later step on

  const { code, said } = await type('npx ratchet-rl train watched.toml --learning-rate 5e-4');
  assert.equal(code, 2, said);
  const suggested = suggestedIn(said);
  assert.deepEqual(suggested, [
    'npx ratchet-rl attach watched',
    'npx ratchet-rl set watched learning_rate=0.0005',
    'npx ratchet-rl stop watched',
    'npx ratchet-rl train watched.toml --learning-rate 5e-4',
    'npx ratchet-rl train watched.toml --learning-rate 5e-4 --fresh',
  ]);
  await allWork(suggested.slice(1, 2));

  const attached = begin('attach watched');
  await attached.says(/ step \d+ of 400/);
  await allWork(['npx ratchet-rl stop watched --now']);
  assert.equal(await training.ended, 1);
  assert.equal(await attached.ended, 1);
  assert.deepEqual(suggestedIn(training.said), ['npx ratchet-rl train watched.toml'], training.said);
  assert.deepEqual(suggestedIn(attached.said), ['npx ratchet-rl train watched.toml --name watched'], attached.said);

  const further = begin(suggestedIn(attached.said)[0]!.replace('npx ratchet-rl ', ''));
  await further.says(/ step \d+ of 400/);
  await allWork(['npx ratchet-rl stop watched']);
  assert.equal(await further.ended, 0, further.said);
});

test('of a run whose processes were ended with it, in a folder of its own', async () => {
  const folder = path.join(project.folder, 'alone');
  await mkdir(folder);
  await writeFile(path.join(folder, 'alone.toml'), fakeRun({ log: path.join(folder, 'sampled'), steps: 6 }));
  const training = begin('train alone.toml', folder);
  await training.says(/step 1 of 6/);
  await training.stop();
  assert.deepEqual(suggestedIn(training.said), ['npx ratchet-rl train alone.toml'], training.said);
  const stored = await type('npx ratchet-rl status alone', folder);
  assert.deepEqual(suggestedIn(stored.said), ['npx ratchet-rl train alone.toml --name alone'], stored.said);
  await allWork(suggestedIn(training.said), folder);
});
