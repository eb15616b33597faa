/**
 * Tokenizer, configs and templates are part of a version: files beside its weights are compared wherever it is read.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdir, readFile, rm, symlink, truncate, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { examineStore } from '../../runs/lineages/examine-store.ts';
import { auditVersions } from '../../runs/versions/kept-versions.ts';
import { listCheckpoints } from '../../runs/versions/list-checkpoints.ts';
import { servedPolicy } from '../../runs/run-access.ts';
import { sumsName } from '../../store/version-files.ts';
import { layout } from '../../runs/layout.ts';
import { hasCode } from './store.contract.ts';
import { advance, commitFirst, makeRun, openRoles, placeOf } from '../activities/runs.ts';

const damages: Readonly<Record<string, (file: string) => Promise<void>>> = {
  'two letters swapped': async (file) => {
    const text = await readFile(file, 'utf8');
    await writeFile(file, `${text[1]}${text[0]}${text.slice(2)}`);
  },
  emptied: (file) => writeFile(file, ''),
  'taken away': (file) => rm(file),
  'a link to itself': async (file) => {
    await rm(file);
    await symlink(file, file);
  },
  'a folder': async (file) => {
    await rm(file);
    await mkdir(file);
  },
  'a FIFO': async (file) => {
    await rm(file);
    execFileSync('mkfifo', [file]);
  },
  '3 GB': (file) => truncate(file, 3e9),
};

/** Checkpoints 0, 2 and 4 and the head, 5. */
async function fiveSteps(t: TestContext) {
  const test = await makeRun(t);
  const roles = openRoles();
  const versions = [await commitFirst(test, roles)];
  while (versions.length < 6) versions.push(await advance(test, roles, versions.at(-1)!));
  return { test, versions: versions.map(({ state }) => state.policy) };
}

test('a file beside the weights that is not what it was is found by training, sampling and the audit', async (t) => {
  const { test, versions } = await fiveSteps(t);
  const key = `${layout.weights('main', 4)}config.json`;
  for (const [what, damage] of Object.entries(damages)) {
    await servedPolicy(test.run, versions[4]!); // compared before: remembered while it looks untouched
    const file = path.join(test.folder, key);
    const whole = await readFile(file);
    await damage(file);
    await assert.rejects(servedPolicy(test.run, versions[4]!), hasCode('CheckpointDamaged', key), what);
    const recovery = await openRoles().policyTrainer.bringTo(test.run, versions[5]!);
    assert.equal(placeOf(recovery).restoredFrom, 2, what);
    const audited = (await listCheckpoints(test.run)).checkpoints.find(({ step }) => step === 4);
    assert.equal(audited?.state, 'damaged', what);
    assert(audited.problem?.includes(key), audited.problem ?? '');
    assert.doesNotMatch(audited.problem ?? '', /expected 0 bytes/, what); // its size is not known, its sha256 is
    await rm(file, { recursive: true, force: true });
    await writeFile(file, whole);
  }
  await servedPolicy(test.run, versions[4]!);
});

test('an audit and fsck read versions that are kept without a checkpoint, too', async (t) => {
  const { test } = await fiveSteps(t);
  const audit = () => auditVersions(test.run, { besides: new Set(['main/0', 'main/2', 'main/4']), anew: new Map() });
  const whole = await audit();
  assert.deepEqual(
    whole.map(({ step, problem }) => [step, problem]),
    [1, 3, 5].map((step) => [step, null]),
  );
  const weights = (await test.store.list(layout.weights('main', 3))).find((key) => key.endsWith('.safetensors'))!;
  await rm(path.join(test.folder, weights));
  await mkdir(path.join(test.folder, weights));
  const faults = (await audit()).filter(({ problem }) => problem !== null);
  assert.deepEqual(
    faults.map(({ step }) => step),
    [3],
  );
  assert(faults[0]!.problem!.includes(weights), faults[0]!.problem!);
  assert((await examineStore(test.run)).faults.some(({ key }) => key === layout.weights('main', 3)));
});

test('the tokenizer of the reference policy is compared before a step is trained against it', async (t) => {
  const { test, versions } = await fiveSteps(t);
  const key = `${layout.weights('main', 0)}tokenizer.json`;
  await damages['two letters swapped']!(path.join(test.folder, key));
  await test.store.removeAll(layout.checkpoint('main', 4));
  await assert.rejects(openRoles().policyTrainer.bringTo(test.run, versions[5]!), hasCode('CheckpointDamaged', key));
});

test('neither a changed list of the files passes, nor a file that it does not list', async (t) => {
  const { test, versions } = await fiveSteps(t);
  const folder = path.join(test.folder, layout.weights('main', 4));
  await writeFile(path.join(folder, 'chat_template.jinja'), '{{ messages }}');
  await assert.rejects(servedPolicy(test.run, versions[4]!), hasCode('CheckpointDamaged', 'chat_template.jinja'));
  await rm(path.join(folder, 'chat_template.jinja'));
  await writeFile(path.join(folder, sumsName), '');
  await assert.rejects(servedPolicy(test.run, versions[4]!), hasCode('CheckpointDamaged', sumsName));
});

test('a checkpoint whose manifest was taken away is damaged, also the first and when nothing else of it is left', async (t) => {
  const { test } = await fiveSteps(t);
  for (const step of [0, 2]) {
    const key = `${layout.checkpoint('main', step)}manifest.json`;
    const whole = (await test.store.read(key))!;
    await test.store.removeAll(key);
    const { state, problem } = (await listCheckpoints(test.run)).checkpoints.find((found) => found.step === step)!;
    assert.deepEqual([state, problem], ['damaged', `${key} is missing`]);
    await test.store.put(key, whole);
  }
});

test('a list of the files that has become very large is found by its size, without being read through', async (t) => {
  const { test, versions } = await fiveSteps(t);
  await truncate(path.join(test.folder, layout.weights('main', 4) + sumsName), 500e9);
  await assert.rejects(servedPolicy(test.run, versions[4]!), hasCode('CheckpointDamaged', sumsName, '500000000000'));
});
