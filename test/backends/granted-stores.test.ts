/**
 * A folder that a workflow names as a store is used if its user said so, or if no other user could have arranged it.
 */
import assert from 'node:assert/strict';
import { existsSync, lchownSync } from 'node:fs';
import {
  chmod,
  chown,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { judgeEvaluation } from '../../activities/evaluation/judge-evaluation.ts';
import { createOpenRun } from '../../activities/open-run.ts';
import { grantByFile, grantNamed, namedIn } from '../../load/grants/grant.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { checkStore, linesOfStore, openRunStore, requireOwnFolder, resolveStoreUri } from '../../store/index.ts';
import { createOpenEvaluation } from '../../activities/evaluation/open-evaluation.ts';
import { createOpenPromptSearch } from '../../activities/prompt-search/open-search.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { EvaluationInput, EvaluationResult } from '../../core/eval/evaluation.ts';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { claimRun } from '../../runs/claim-run.ts';
import { trustedRootsVariable } from '../../core/child-environment.ts';
import { grantedAt } from '../../host/grants.ts';
import { requireStorePlace } from '../../host/trusted-files.ts';
import { bytes, hasCode, text } from '../store/store.contract.ts';

interface Place {
  readonly project: string;
  /** A folder of the same user that was not named. */
  readonly elsewhere: string;
}

/** Places of a worker of our own server. */
async function places(t: TestContext): Promise<Place> {
  const folder = await realpath(await mkdtemp(path.join(tmpdir(), 'ratchet-granted-stores-')));
  const before = process.env[trustedRootsVariable];
  t.after(async () => {
    if (before === undefined) delete process.env[trustedRootsVariable];
    else process.env[trustedRootsVariable] = before;
    await rm(folder, { recursive: true, force: true });
  });
  const [project, elsewhere] = [path.join(folder, 'project'), path.join(folder, 'elsewhere')];
  for (const each of [project, elsewhere]) await mkdir(each, { mode: 0o755 });
  process.env[trustedRootsVariable] = project;
  return { project, elsewhere };
}

const uriOf = (folder: string): string => resolveStoreUri(folder, '/');
const resultIn = (store: string) => ({ place: { store, name: 'private', prefix: '' } }) as EvaluationResult;
const granted = (project: string): Promise<string> => readFile(grantedAt(project), 'utf8').catch(() => '');

test('no operation touches a store that nobody named, and none says whether it exists', async (t) => {
  const { elsewhere } = await places(t);
  await mkdir(path.join(elsewhere, 'there/private'), { recursive: true });
  await writeFile(path.join(elsewhere, 'there/private/k'), 'ours');
  await mkdir(path.join(elsewhere, 'there/old/evaluation'), { recursive: true });
  await writeFile(path.join(elsewhere, 'there/old/evaluation/attempt_1.json'), 'ours');
  const said: string[] = [];
  for (const name of ['there', 'nothing/there']) {
    const folder = path.join(elsewhere, name);
    const store = openRunStore(uriOf(folder), 'private');
    const ref = { key: 'k', sha256: '0'.repeat(64), bytes: 0 };
    for (const work of [
      () => store.read('k'),
      () => store.get(ref),
      () => store.verify(ref),
      () => store.list(''),
      () => store.readFrom('k.log', 0),
      () => store.readRange('k', 0, 1),
      () => store.put('k', bytes('1')),
      () => store.putFile('k', path.join(elsewhere, 'there/private/k')),
      () => store.putIfAbsent('new', bytes('1')),
      () => store.append('k.log', '1'),
      () => store.removeAll('k'),
      () => store.removeAll(''),
      () => store.localFolder(''),
      () => store.leftovers!(0),
      () => store.staging!.folder('new/'),
      () => store.staging!.seal(''),
      () => store.staging!.settle('k', 'l'),
      () => checkStore(uriOf(folder)),
      () => new MockActivityEnvironment().run(judgeEvaluation, { result: resultIn(uriOf(folder)), version: null }),
    ]) {
      await assert.rejects(work, (error: Error) => {
        said.push(error.message.replaceAll(folder, 'FOLDER'));
        return hasCode('ConfigInvalid', 'is not taken from Temporal', `Expected the line "store ${folder}"`)(error);
      });
    }
  }
  assert.equal(new Set(said).size, 1, [...new Set(said)].join('\n'));
  assert.deepEqual(await readdir(elsewhere), ['there']);
  assert.deepEqual(await readdir(path.join(elsewhere, 'there/private')), ['k']);
});

test('a run whose workflow names a store elsewhere is refused, with a trusted file and the store laid over it', async (t) => {
  const { project, elsewhere } = await places(t);
  const config = path.join(project, 'run.toml');
  await writeFile(config, 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n');
  const open = createOpenRun({
    projectFolder: project,
    whatSearchAttributesLack: () => Promise.resolve('no search attributes'),
    isWorkflowRunning: () => Promise.resolve(false),
  });
  const overrides = { 'store.uri': uriOf(elsewhere) };
  await assert.rejects(open({ config, overrides }, 'w', 'e'), hasCode('ConfigInvalid', `store ${elsewhere}`));
  assert.deepEqual(await readdir(elsewhere), []);
  assert.equal(await granted(project), '');
  // The same store in the file itself, which a worker reads as it stands.
  await writeFile(config, `${await readFile(config, 'utf8')}[store]\nuri = "file:${elsewhere}"\n`);
  await loadRunConfig(config, { projectFolder: project });
  assert.equal(await granted(project), `store ${elsewhere}\n`);
  await openRunStore(uriOf(elsewhere), 'private').put('k', bytes('1'));
});

test('where runs usually lie needs no line; all else in the project needs it, and what others can write to', async (t) => {
  const { project } = await places(t);
  const outputs = path.join(project, 'outputs');
  await openRunStore(uriOf(outputs), 'run').put('k', bytes('1'));
  await checkStore(uriOf(path.join(project, 'outputs/not/yet')));
  await checkStore(uriOf(path.join(project, 'environments/own/outputs/evals')));
  grantNamed(project, linesOfStore(uriOf(outputs)));
  grantByFile(linesOfStore(uriOf(outputs)), true);
  assert.equal(await granted(project), '');
  const shared = path.join(project, 'outputs/shared');
  await mkdir(path.join(shared, 'below'), { recursive: true });
  await chmod(shared, 0o777);
  const below = path.join(shared, 'below');
  for (const folder of [shared, below]) {
    const refused = hasCode('ConfigInvalid', `anybody may write to ${shared}`, `"store ${folder}"`);
    await assert.rejects(openRunStore(uriOf(folder), 'run').read('k'), refused);
  }
  grantNamed(project, linesOfStore(uriOf(shared)));
  assert.equal(await granted(project), `store ${shared}\n`);
  await openRunStore(uriOf(shared), 'run').put('k', bytes('1'));
  assert.equal(text(await openRunStore(uriOf(shared), 'run').read('k')), '1');
});

test('a folder of the project that nobody named as a store is none, whatever its run is called', async (t) => {
  const { project } = await places(t);
  await mkdir(path.join(project, 'outputs/base'), { recursive: true });
  await writeFile(path.join(project, 'outputs/base/run.json'), '{}');
  await symlink(project, path.join(project, 'outputs/up'));
  for (const [below, run] of [
    ['', 'src'],
    ['src', 'run'],
    ['environments', 'mine'],
    ['environments/mine', 'outputs'],
    ['node_modules/.bin', 'run'],
    ['src/outputs', 'run'],
    ['outputs/../src', 'run'],
    ['outputs/up', 'src'],
    ['outputs/base', 'specs'],
    ['outputs/base/weights', 'run'],
    ['outputsx', 'run'],
  ] as const) {
    const folder = path.join(project, below);
    const refused = hasCode('ConfigInvalid', 'is not taken from Temporal', `"store ${folder.replace(/\/$/, '')}"`);
    await assert.rejects(openRunStore(uriOf(folder), run).put('k', bytes('1')), refused, folder);
    await assert.rejects(checkStore(uriOf(folder)), refused, folder);
  }
  assert.deepEqual((await readdir(project)).toSorted(), ['outputs']);
  // Granted as by a command line that names it.
  grantNamed(project, linesOfStore(uriOf(path.join(project, 'src'))));
  await openRunStore(uriOf(path.join(project, 'src')), 'run').put('k', bytes('1'));
});

test('a run, an evaluation and a search begin in no folder that holds something else', async (t) => {
  const { project } = await places(t);
  const store = uriOf(path.join(project, 'outputs'));
  const own = path.join(project, 'outputs/own');
  await mkdir(path.join(own, 'deep/er'), { recursive: true });
  await requireOwnFolder({ store, name: 'nowhere' });
  await requireOwnFolder({ store, name: 'own' });
  await writeFile(path.join(own, 'deep/er/.tmp-1'), '');
  await requireOwnFolder({ store, name: 'own' });
  await writeFile(path.join(own, 'deep/er/secret-name.txt'), 'ours');
  await mkdir(path.join(own, 'specs'));
  await writeFile(path.join(own, 'specs/api.json'), 'ours'); // no name of ours
  await assert.rejects(requireOwnFolder({ store, name: 'own' }), hasCode('ConfigInvalid', own, 'found other files'));
  const elsewhere = claimRun({ store: { uri: store }, name: 'own' } as RunSpec, 'w', () => Promise.resolve(false));
  await assert.rejects(elsewhere, hasCode('ConfigInvalid', own, 'Nothing was written'));
  const results = { store, name: 'own', prefix: '' };
  const search = createOpenPromptSearch({ codeVersion: 'test', countRolloutWorkers: () => Promise.resolve(1) });
  const evaluate = createOpenEvaluation({ codeVersion: 'test', countRolloutWorkers: () => Promise.resolve(1) });
  const model = { kind: 'run', run: { name: 'own', store } };
  for (const open of [
    () => search({ input: { results } as unknown as PromptSearchInput }),
    () => evaluate({ input: { results, model } as unknown as EvaluationInput, request: 'w/e' }),
  ]) {
    await assert.rejects(() => new MockActivityEnvironment().run(open), hasCode('ConfigInvalid', own));
  }
  assert.deepEqual((await readdir(own)).toSorted(), ['deep', 'specs']);
  delete process.env[trustedRootsVariable]; // as the command line
  await assert.rejects(requireOwnFolder({ store, name: 'own' }), hasCode('ConfigInvalid', 'found deep, specs'));
  for (const landmark of ['run.json', 'claims/claim_1.json', 'evaluation/attempt_1.json', 'search/search.json']) {
    const file = path.join(own, landmark);
    await mkdir(path.dirname(file), { recursive: true });
    await writeFile(file, '{}');
    await requireOwnFolder({ store, name: 'own' });
    await rm(file);
  }
});

test('an evaluation or a search does not spread over the folder of a run, and one of its own below it may', async (t) => {
  const { project } = await places(t);
  const store = uriOf(path.join(project, 'outputs'));
  const run = path.join(project, 'outputs/words');
  await mkdir(run, { recursive: true });
  await writeFile(path.join(run, 'run.json'), '{}');
  for (const prefix of ['', './', 'evals/..'])
    await assert.rejects(
      requireOwnFolder({ store, name: 'words', prefix }),
      hasCode('ConfigInvalid', run, 'found the folder of a run'),
    );
  await requireOwnFolder({ store, name: 'words', prefix: 'evals/step_1/' });
  await requireOwnFolder({ store, name: 'words' });
});

test('no run is written where the project keeps its grants and secrets', async (t) => {
  const { project } = await places(t);
  const kept = path.join(project, '.ratchet');
  const refused = hasCode('ConfigInvalid', `"store ${kept}"`);
  await assert.rejects(openRunStore(uriOf(kept), 'granted').put('run.json', bytes('1')), refused);
  assert.ok(!existsSync(path.join(kept, 'granted')));
});

test('a further root that was named where the server was started is one for stores as well', async (t) => {
  const { project, elsewhere } = await places(t);
  await assert.rejects(requireStorePlace(elsewhere), hasCode('ConfigInvalid', 'is not taken'));
  process.env[trustedRootsVariable] = [project, elsewhere].join(path.delimiter);
  const runs = path.join(elsewhere, 'outputs');
  assert.equal(await requireStorePlace(runs), runs);
  await assert.rejects(requireStorePlace(elsewhere), hasCode('ConfigInvalid', 'is not taken'));
});

test('what a user names at a command line is granted by its real path, and a link put there later is not', async (t) => {
  const { project, elsewhere } = await places(t);
  const [runs, home] = [path.join(elsewhere, 'runs'), path.join(elsewhere, 'home')];
  for (const each of [runs, home]) await mkdir(path.join(each, 'run'), { recursive: true });
  await writeFile(path.join(home, 'run/k'), 'ours');
  await symlink(runs, path.join(project, 'alias'));
  const config = path.join(project, 'run.toml');
  await writeFile(
    config,
    'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n[store]\nuri = "file:alias"\n',
  );
  delete process.env[trustedRootsVariable]; // as the command line
  const { spec } = await loadRunConfig(config, { projectFolder: project });
  grantNamed(project, namedIn(spec));
  process.env[trustedRootsVariable] = project;
  assert.equal(await granted(project), `store ${runs}\n`);
  for (const folder of [runs, path.join(project, 'alias')])
    await openRunStore(uriOf(folder), 'run').put('k', bytes('1'));

  await rename(runs, `${runs}.moved`);
  await symlink(home, runs);
  for (const folder of [runs, path.join(project, 'alias')]) {
    await assert.rejects(openRunStore(uriOf(folder), 'run').read('k'));
    await assert.rejects(openRunStore(uriOf(folder), 'run').put('k', bytes('2')));
    await assert.rejects(openRunStore(uriOf(folder), 'new').put('k', bytes('2')));
  }
  assert.deepEqual([await readdir(home), await readFile(path.join(home, 'run/k'), 'utf8')], [['run'], 'ours']);
});

const theirUid = 54_321;

test(
  'a store of another user is theirs alone until this user names it, and their links in it lead nowhere then',
  { skip: process.getuid?.() === 0 ? false : 'only root can make files of another user' },
  async (t) => {
    const { project, elsewhere } = await places(t);
    const inProject = path.join(project, 'outputs/given');
    await mkdir(inProject, { recursive: true });
    await chown(inProject, theirUid, theirUid);
    const ofUser = hasCode('ConfigInvalid', `belongs to user ${theirUid}`);
    await assert.rejects(openRunStore(uriOf(inProject), 'run').read('k'), ofUser);

    const [theirs, home] = [path.join(elsewhere, 'theirs'), path.join(elsewhere, 'home')];
    for (const each of [theirs, path.join(home, 'private')]) await mkdir(each, { recursive: true });
    await chown(theirs, theirUid, theirUid);
    grantNamed(project, linesOfStore(uriOf(theirs)));
    await openRunStore(uriOf(theirs), 'run').put('k', bytes('1'));
    await symlink(path.join(home, 'private'), path.join(theirs, 'private'));
    lchownSync(path.join(theirs, 'private'), theirUid, theirUid);
    const refused = hasCode('Unsupported', `a link of user ${theirUid}`);
    await assert.rejects(openRunStore(uriOf(theirs), 'private').put('k', bytes('2')), refused);
    assert.ok(!existsSync(path.join(home, 'private/k')));
  },
);

test('a worker of a server that knows its clients asks nothing of a store', async (t) => {
  const { elsewhere } = await places(t);
  delete process.env[trustedRootsVariable];
  assert.equal(await requireStorePlace(elsewhere), null);
  await openRunStore(uriOf(elsewhere), 'run').put('k', bytes('1'));
});
