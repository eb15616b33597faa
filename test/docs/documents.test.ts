/** The documents say what the code says, and their links lead somewhere. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { commandGroups } from '../../cli/commands.ts';
import { settingsByPath } from '../../config/settings/index.ts';
import { failedOutcomes } from '../../core/rl/rollout/rollout.ts';
import { liveSettingNames, liveSettings } from '../../core/rl/live-settings.ts';
import { repositoryFolder } from '../e2e/small-run.ts';
import { commandPages } from './command-help.ts';
import { docsFolder, made, madeDocuments, madeFolders } from './documents.ts';
import { definitionOf, metricDefinitions } from './metric-page.ts';

for (const document of madeDocuments) {
  test(`docs/guide/${document.file} says what the code says (npm run docs writes it again)`, async () => {
    assert.equal(await readFile(path.join(docsFolder, document.file), 'utf8'), await made(document));
  });
}

test('the folders of made documents hold nothing else', () => {
  const held = madeFolders.flatMap((folder) =>
    readdirSync(path.join(docsFolder, folder)).map((name) => `${folder}/${name}`),
  );
  const names = madeDocuments.map(({ file }) => file).filter((file) => file.includes('/'));
  assert.deepEqual(held.sort(), names.sort());
});

test('every key of a run file has a meaning', () => {
  const without = [...settingsByPath].filter(([, { means }]) => means === '').map(([path]) => path);
  assert.deepEqual(without, []);
});

test('what can be changed while a run is open is marked in the table of settings, and nothing else', () => {
  const marked = [...settingsByPath].flatMap(([path, { live }]) => (live === undefined ? [] : [{ path, live }]));
  for (const { path, live } of marked) {
    const [, name] = /^(?:trainer\.)?(.*)$/.exec(path)!;
    assert.equal(live, liveSettings[name as keyof typeof liveSettings], path);
  }
  // No file says when to stop this time.
  assert.equal(marked.length, liveSettingNames.filter((name) => name !== 'stop_after').length);
});

test('every command is documented with what it printed', async () => {
  const pages = commandPages.map(({ file }) => readFile(path.join(docsFolder, file), 'utf8'));
  const sections = (await Promise.all(pages)).flatMap((text) => text.split(/^## ratchet /m).slice(1));
  assert.equal(sections.length, Object.values(commandGroups).flatMap((group) => Object.keys(group)).length);
  const without = sections
    .filter((section) => !/^```console\n\$ .*\n(?!\$|\n|```)/m.test(section)) // its first output is not empty
    .map((section) => section.split('\n', 1)[0]);
  assert.deepEqual(without, []);
});

test('a metric stands on its page once, and is found by the name a run gives it', () => {
  const names = metricDefinitions.map(({ name }) => name);
  assert.ok(names.length > 100, `only ${names.length} metrics were found`);
  assert.equal(new Set(names).size, names.length);
  const found = (name: string) => definitionOf(name, ['words', 'sums'])?.name;
  for (const { name, meaning } of metricDefinitions) assert.notEqual(meaning, '', name);
  for (const outcome of failedOutcomes)
    assert.equal(found(`train/agg/all/error/${outcome}`), 'train/agg/all/error/<outcome>');
  const causes = metricDefinitions.find(({ name }) => name === 'train/agg/all/error/<outcome>')!.meaning;
  assert.deepEqual(
    [...causes.matchAll(/`(\w+)`/g)].map(([, cause]) => cause),
    failedOutcomes,
  );
  assert.equal(found('eval/words/metrics/exact_match'), 'eval/<env>/metrics/<function>');
  assert.equal(found('train/sums/all/reward/mean'), 'train/<env>/all/reward/mean');
  assert.equal(found('train/others/all/reward/mean'), undefined);
  assert.equal(found('train/rewards'), undefined);
});

const files = execFileSync('git', ['ls-files'], { cwd: repositoryFolder, encoding: 'utf8' })
  .split('\n')
  .filter((file) => file !== '' && existsSync(path.join(repositoryFolder, file)));
const documents = files.filter((file) => file.endsWith('.md'));

test('every relative link in a document leads to a file that is there, and to a heading in it', () => {
  assert.ok(documents.length >= 8, `only ${documents.length} documents were found`);
  assert.deepEqual(
    documents.flatMap((file) => deadLinks(file)),
    [],
  );
});

test('every document that code, a message or a run file names is there', () => {
  const named = files
    .filter((file) => /\.(?:ts|mjs|toml|yaml|py|md|json|example|service)$/.test(file) && !file.startsWith('test/data/'))
    .flatMap((file) => namedDocuments(readFileSync(path.join(repositoryFolder, file), 'utf8'), file));
  assert.ok(named.length > 30, `only ${named.length} documents are named`);
  const dead = named.filter(({ document }) => !existsSync(path.join(repositoryFolder, document)));
  assert.deepEqual(dead, []);
});

/** `docs/guide/tinker.md` as it is written in a message, a comment or a piece of code; what git ignores is no document. */
function namedDocuments(text: string, file: string): { file: string; document: string }[] {
  const documents = text.matchAll(/(?<![\w./-])(?:docs|bench|environments|engine|deploy)\/[\w./-]*\.(?:md|png)\b/g);
  return [...documents]
    .map(([document]) => ({ file, document }))
    .filter(({ document }) => !document.startsWith('docs/made/'));
}

/** `file: link`, of links that lead nowhere. Code is no link. */
function deadLinks(file: string): string[] {
  const text = withoutCode(readFileSync(path.join(repositoryFolder, file), 'utf8'));
  const links = [...text.matchAll(/\]\(([^()\s]+)\)/g)].map(([, link]) => link!);
  return links.flatMap((link) => {
    if (/^[a-z]+:/.test(link)) return [];
    const [place = '', anchor] = link.split('#', 2);
    const target = place === '' ? file : path.join(path.dirname(file), place);
    const whole = path.join(repositoryFolder, target);
    const isThere = existsSync(whole) && (anchor === undefined || anchorsOf(whole).includes(anchor));
    return isThere ? [] : [`${file}: ${link}`];
  });
}

/** Anchors of headings, as GitHub makes them. */
function anchorsOf(file: string): string[] {
  const headings = withoutFences(readFileSync(file, 'utf8')).matchAll(/^#+ (.*)$/gm);
  const counts = new Map<string, number>();
  return [...headings].map(([, heading]) => {
    const anchor = heading!
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
      .trim()
      .replaceAll(/\s/g, '-');
    const seen = counts.get(anchor) ?? 0;
    counts.set(anchor, seen + 1);
    return seen === 0 ? anchor : `${anchor}-${seen}`;
  });
}

function withoutFences(text: string): string {
  return text.replaceAll(/^```[\s\S]*?^```$/gm, '');
}

function withoutCode(text: string): string {
  return withoutFences(text).replaceAll(/`[^`\n]*`/g, '');
}
