import { existsSync } from 'node:fs';
import { access, readdir, realpath } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { isEnvironmentFile, isHubId } from '../../core/names.ts';
import { isTableAlone } from '../../config/layers.ts';
import {
  type Advice,
  type MissingEnvironment,
  type NotYet,
  parseRunConfig,
  type ReadAs,
} from '../../config/parse-run-config.ts';
import type { KeyPath } from '../../config/positions.ts';
import { ConfigProblems, type Place, type Problem } from '../../config/problems.ts';
import type { ChatTemplateSpec, CodeRef, DataRef, RunSpec } from '../../config/run-spec.ts';
import { readsAnything, trustedFile } from '../../engine/trusted-files.ts';
import { environmentFinder } from '../environments/find.ts';
import { readEndpoints } from '../inference/endpoints-file.ts';
import { sha256 } from '../store/file-store.ts';
import { linesOfStore, resolveStoreUri } from '../store/index.ts';
import { begunWith } from '../../runs/begun-run.ts';
import { readChatTemplate } from './chat-template.ts';
import { grantByFile } from './grant.ts';
import { Refused } from './refused.ts';
import { digestsOf, isBelow, refuseOthers, type SentFiles } from './sent-files.ts';
import { readSftData } from './sft-data.ts';
import { requireStoreFolder } from './store-folder.ts';
import { locateVariableFiles, withVariableFiles } from './variable-files.ts';
import { NotAFile, readRegular, readRegularText, whyUnreadable } from '../../engine/regular-file.ts';

/** A file that is laid over those before it; `section` is the table it lies in, dotted. */
export interface ConfigLayer {
  readonly file: string;
  readonly section?: string;
}

export interface LoadOptions {
  /** Relative paths start here. */
  readonly projectFolder: string;
  /** Dotted keys as on the command line. */
  readonly overrides?: Readonly<Record<string, string>>;
  readonly run?: string;
  /** The name of the dialect the file is written in; missing = the one that its keys show. */
  readonly dialect?: string;
  /** Laid over the file from left to right. Files that they name are looked for from the first file's folder. */
  readonly over?: readonly ConfigLayer[];
  /** Whether a run that is there may be looked at in any store; without it, in folders of this machine alone. */
  readonly reachesStore?: boolean;
  /** As it was where the run was started. Where only trusted files are read, it is read here all the same. */
  readonly sent?: SentFiles | undefined;
  /** Only to be looked at: environments that are not here are no error, and files that will not do are told in `problems`. */
  readonly isOnlyLookedAt?: boolean;
}

export interface LoadedConfig {
  readonly spec: RunSpec;
  readonly warnings: readonly string[];
  readonly readAs: ReadAs;
  /** Environments that are not here; none unless the file is only looked at. */
  readonly missing: readonly MissingEnvironment[];
  /** What is read and kept, and not yet honoured. */
  readonly notYet: readonly NotYet[];
  /** What lies outside of the rules of thumb. */
  readonly advice: readonly Advice[];
  /** Of files that the config names; empty unless it is only looked at. */
  readonly problems: readonly Problem[];
  /** Where a field of ours was written, by its names. */
  readonly placeOf: (...names: KeyPath[]) => Place;
  /** The step to go on from, where the config asks for one: −1 = the latest. */
  readonly resumeStep: number | null;
  /** The rows of `[sft] data` as a run stores them; null where there are none, or the run that is there has its own. */
  readonly sftRows: Uint8Array | null;
  /** The text of `[tokenizer] chat_template`; null where there is none, or the run that is there has its own. */
  readonly chatTemplate: string | null;
  /** For whoever starts a run with it. */
  readonly sent: SentFiles;
}

/** A TOML file as a run spec with every path made absolute. Throws `ConfigProblems` (ConfigInvalid) naming all problems at once. */
export async function loadRunConfig(
  file: string,
  {
    projectFolder,
    overrides = {},
    run,
    dialect,
    over = [],
    reachesStore = false,
    isOnlyLookedAt = false,
    sent,
  }: LoadOptions,
): Promise<LoadedConfig> {
  const absolute = path.resolve(projectFolder, file);
  const texts: Record<string, string> = {};
  const readText = async (name: string): Promise<string> =>
    (texts[name] ??= await readConfig(path.resolve(projectFolder, name), name, sent));
  const text = isTableAlone(file, over) ? '' : await readText(file);
  const parsed = parseRunConfig(text, {
    file,
    overrides,
    findEnvironment: environmentFinder({ projectFolder }),
    isOnlyLookedAt,
    ...(run === undefined ? {} : { runName: run }),
    ...(dialect === undefined ? {} : { dialect }),
    over: await Promise.all(
      over.map(async (layer) => ({
        ...layer,
        text: await readText(layer.file),
      })),
    ),
  });
  if (!parsed.ok) throw new ConfigProblems(parsed.problems, parsed.readAs);
  const { spec, readAs } = parsed;
  const folder = path.dirname(absolute);
  const store = { uri: resolveStoreUri(spec.store.uri, projectFolder) };
  grantByFile(linesOfStore(store.uri), Object.keys(overrides).length === 0);
  const problems = new Map<string, Problem>();
  /** All that is wrong with files that the config names is said at once. */
  const tried: Tried = async (names, look) => {
    try {
      return await look();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const problem = { ...parsed.placeOf(...names), ...error.said };
      problems.set(JSON.stringify(problem), problem);
      return null;
    }
  };
  await tried([['store', 'uri'], ['output_dir']], () => requireStoreFolder(store.uri));
  const code = await readCodeOf(spec, folder, tried);
  const environments = await readEnvironments(spec, folder, tried);
  const variables = await locateVariableFiles(spec, [folder, projectFolder], (look) => tried([['env_files']], look));
  const keeps = spec.sft?.data != null || spec.chatTemplate?.path != null;
  const mayLook = reachesStore || store.uri.startsWith('file:');
  const begun = keeps && mayLook ? await begunWith({ ...spec, store }) : null;
  const around = { folder, projectFolder, begun };
  const inference = await readServers(spec.inference, { folder, projectFolder }, tried);
  const teacher = await readTeacher(spec.teacher, { folder, projectFolder }, tried);
  const data = await tried([['sft', 'data']], () => readData(spec, around));
  const template = await tried([['tokenizer', 'chat_template']], () => readTemplate(spec, around));
  if (problems.size > 0 && !isOnlyLookedAt) throw new ConfigProblems([...problems.values()], readAs);
  const beside = digestsOf(folder, [
    ...Object.values(code),
    ...[...environments.trained, ...environments.evaluated].map(({ id, sha256 }) => ({
      path: id,
      sha256: sha256 ?? null,
    })),
    data?.found ?? null,
    template?.found ?? null,
  ]);
  if (sent) refuseOthers(beside, sent, folder);
  const files = new Map(
    [...environments.trained, ...environments.evaluated].flatMap(({ id, sha256 }) =>
      sha256 === undefined ? [] : [[id, { path: id, sha256 }]],
    ),
  );
  return {
    spec: {
      ...spec,
      environments: withVariableFiles(environments.trained, variables),
      eval: spec.eval && { ...spec.eval, environments: withVariableFiles(environments.evaluated, variables) },
      sft: spec.sft && { ...spec.sft, data: data?.ref ?? null },
      chatTemplate: template?.ref ?? null,
      loss: { ...spec.loss, import: code.loss },
      advantage: code.advantage === null ? spec.advantage : { import: code.advantage },
      trainer: withCode(spec.trainer, code.trainer),
      inference: withCode(inference, code.inference),
      teacher,
      model: await resolveModel(spec.model, folder, projectFolder),
      store,
    },
    resumeStep: parsed.resumeStep,
    readAs,
    missing: parsed.missing,
    notYet: parsed.notYet,
    advice: parsed.advice,
    placeOf: parsed.placeOf,
    sent: { texts, beside },
    problems: [...problems.values()],
    sftRows: data?.rows ?? null,
    chatTemplate: template?.text ?? null,
    warnings: [
      ...parsed.warnings,
      ...[data, template].flatMap((read) => read?.warning ?? []),
      ...variables.warnings,
      ...[...Object.values(code).filter((ref) => ref !== null), ...files.values()].map(runsCode),
    ],
  };
}

/** Looks at something that a field names; null where that was refused, which is said with the others. */
type Tried = <T>(names: readonly KeyPath[], look: () => Promise<T>) => Promise<T | null>;

/** Code of the user's that a run executes in the trainer or the workers. */
async function readCodeOf(
  { loss, advantage, trainer, inference }: RunSpec,
  folder: string,
  tried: Tried,
): Promise<Record<'loss' | 'advantage' | 'trainer' | 'inference', CodeRef | null>> {
  const read = async (ref: CodeRef | null, ...at: KeyPath): Promise<CodeRef | null> =>
    ref && tried([at, [...at.slice(0, -1), 'path']], () => readCode(ref, folder));
  return {
    loss: await read(loss.import, 'trainer', 'loss', 'import'),
    advantage: await read(typeof advantage === 'string' ? null : advantage.import, 'trainer', 'advantage', 'import'),
    trainer: await read(trainer.kind === 'module' ? trainer.import : null, 'trainer', 'import'),
    inference: await read(inference.kind === 'module' ? inference.import : null, 'inference', 'import'),
  };
}

/** Environments that are files: where they are, and what is in them now. */
async function readEnvironments(
  spec: RunSpec,
  folder: string,
  tried: Tried,
): Promise<{ trained: RunSpec['environments']; evaluated: NonNullable<RunSpec['eval']>['environments'] }> {
  const withFile = async <Entry extends { readonly id: string; readonly sha256?: string | undefined }>(
    entry: Entry,
    names: readonly KeyPath[],
  ): Promise<Entry> => {
    if (!isEnvironmentFile(entry.id)) return entry;
    const found = await tried(names, () => readCode({ path: entry.id, sha256: null }, folder));
    return found ? { ...entry, id: found.path, ...(found.sha256 === null ? {} : { sha256: found.sha256 }) } : entry;
  };
  return {
    trained: await Promise.all(spec.environments.map((entry, i) => withFile(entry, [['env', i, 'id']]))),
    // Those that are trained on, where none are named.
    evaluated: await Promise.all(
      (spec.eval?.environments ?? []).map((entry, i) =>
        withFile(entry, [
          ['eval', 'env', i, 'id'],
          ['env', i, 'id'],
        ]),
      ),
    ),
  };
}

/** Where files that a run keeps are looked for, and what the run that is there has of them. */
interface Around {
  readonly folder: string;
  readonly projectFolder: string;
  readonly begun: Awaited<ReturnType<typeof begunWith>>;
}

interface LoadedTemplate {
  readonly ref: ChatTemplateSpec;
  readonly text: string | null;
  /** The file as it is now. */
  readonly found?: Pick<CodeRef, 'path' | 'sha256'>;
  readonly warning?: string;
}

/** `[tokenizer] chat_template`: as it is now, or, where the run has begun with another one, that. */
async function readTemplate(
  spec: RunSpec,
  { folder, projectFolder, begun: before }: Around,
): Promise<LoadedTemplate | null> {
  const written = spec.chatTemplate?.path;
  if (written == null) return null;
  const begun = before?.chatTemplate ?? null;
  const goesOn = (what: string): LoadedTemplate => ({
    ref: begun!,
    text: null,
    warning: `[tokenizer] chat_template ${what} since this run began; it goes on with the template it has. To begin with the other one: --fresh.`,
  });
  try {
    const found = await readChatTemplate(written, (file) =>
      trustedFile(resolvePath(file, folder, projectFolder), 'The chat template'),
    );
    if (begun && begun.sha256 !== found.ref.sha256) return goesOn('has changed');
    return { ...found, found: { path: resolvePath(written, folder, projectFolder), sha256: found.ref.sha256 } };
  } catch (error) {
    if (begun && error instanceof Refused) return goesOn('has become unreadable');
    throw error;
  }
}

/** The alias of an endpoints file: where that is, and that it will do as it is now. */
async function readServers(
  spec: RunSpec['inference'],
  { folder, projectFolder }: { readonly folder: string; readonly projectFolder: string },
  tried: Tried,
): Promise<RunSpec['inference']> {
  if (spec.kind === 'module' || spec.kind === 'tinker' || spec.endpoints === null) return spec;
  const endpoints = { ...spec.endpoints, path: resolvePath(spec.endpoints.path, folder, projectFolder) };
  const names = [
    ['inference', 'endpoints_path'],
    ['inference', 'endpoint_id'],
  ];
  await tried(names, () => lookAtAlias(endpoints));
  return { ...spec, endpoints };
}

/** A folder, or the servers that an alias stands for: both from the config's folder or the project's. */
async function readTeacher(
  teacher: RunSpec['teacher'],
  { folder, projectFolder }: { readonly folder: string; readonly projectFolder: string },
  tried: Tried,
): Promise<RunSpec['teacher']> {
  if (teacher === null) return null;
  const { folder: written, endpoints } = teacher;
  if (written !== null) {
    const found = resolvePath(written, folder, projectFolder);
    await tried([['teacher', 'model']], async () => {
      if (await isThere(path.join(found, 'config.json'))) return;
      if (await isThere(path.join(found, 'adapter_config.json'))) return;
      const suggestion = await adviceOnVersion(written, found);
      throw new Refused({
        expected: 'a folder of weights (config.json, …), or a url beside it: the server that has this model',
        received: JSON.stringify(written),
        ...(suggestion === null ? {} : { suggestion }),
      });
    });
    return { ...teacher, folder: found };
  }
  if (endpoints === null) return teacher;
  const there = { ...endpoints, path: resolvePath(endpoints.path, folder, projectFolder) };
  const names = [
    ['teacher', 'endpoints_path'],
    ['teacher', 'endpoint_id'],
  ];
  await tried(names, () => lookAtAlias(there));
  return { ...teacher, endpoints: there };
}

const versionName = /^step_(\d+)$/;

/** What to write in place of a run's version that is not there; null where the path is none. */
async function adviceOnVersion(written: string, version: string): Promise<string | null> {
  if (!versionName.test(path.basename(version))) return null;
  const names = await readdir(path.dirname(version)).catch(() => []);
  const steps = names.flatMap((name) => Number(versionName.exec(name)?.[1] ?? NaN)).filter((step) => step >= 0);
  if (steps.length === 0) return 'train the run whose version that is first';
  return `the newest version there is ${path.join(path.dirname(written), `step_${Math.max(...steps)}`)}`;
}

function lookAtAlias(endpoints: Parameters<typeof readEndpoints>[0]): Promise<unknown> {
  try {
    return Promise.resolve(readEndpoints(endpoints));
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    throw new Refused({ expected: 'an endpoints.toml with this alias', received: error.message }, error);
  }
}

interface LoadedData {
  readonly ref: DataRef;
  readonly rows: Uint8Array | null;
  /** The file as it is now. */
  readonly found?: Pick<CodeRef, 'path' | 'sha256'>;
  readonly warning?: string;
}

/** `[sft] data`: as it is now, or, where the run has begun with other rows, those. */
async function readData(spec: RunSpec, { folder, projectFolder, begun: before }: Around): Promise<LoadedData | null> {
  const written = spec.sft?.data?.path;
  if (written === undefined) return null;
  const file = trustedFile(resolvePath(written, folder, projectFolder), 'The data');
  const begun = before?.data ?? null;
  const goesOn = (what: string): LoadedData => ({
    ref: begun!,
    rows: null,
    warning: `[sft] data: ${file} ${what} since this run began; it goes on with the rows it has. To begin with those of the file: --fresh.`,
  });
  let found: Awaited<ReturnType<typeof readSftData>>;
  try {
    found = await readSftData(file);
  } catch (error) {
    if (begun) return goesOn('has become unreadable');
    throw error;
  }
  const digest = sha256(found.bytes);
  if (begun && begun.sha256 !== digest) return goesOn('has changed');
  return { ref: begun ?? { path: file, sha256: digest }, rows: found.bytes, found: { path: file, sha256: digest } };
}

function withCode<Spec extends { readonly kind: string }>(spec: Spec, code: CodeRef | null): Spec {
  return code === null ? spec : { ...spec, import: code };
}

/** Looks at a file of the user's code without running it. A relative path stays in the config's folder, also through links. */
async function readCode({ path: written }: CodeRef, folder: string): Promise<CodeRef> {
  const absolute = path.resolve(folder, written);
  const refuse = (received: string, cause?: unknown): Refused =>
    new Refused({ expected: 'a file with code beside or below the config, or an absolute path', received }, cause);
  const isInside = path.isAbsolute(written) || isBelow(folder, absolute);
  if (!isInside) throw refuse(`${JSON.stringify(written)} leads out of ${folder}`);
  try {
    if (!path.isAbsolute(written) && !isBelow(await realpath(folder), await realpath(absolute))) {
      throw refuse(`${JSON.stringify(written)} is a link that leads out of ${folder}`);
    }
    return { path: absolute, sha256: sha256(await readRegular(trustedFile(absolute, 'The code'))) };
  } catch (cause) {
    if (cause instanceof RatchetError && !(cause instanceof NotAFile)) throw cause;
    throw refuse(`${absolute}: ${whyUnreadable(cause)}`, cause);
  }
}

function runsCode({ path: file, sha256: digest }: CodeRef): string {
  return `this run executes code of its own: ${file} (sha256 ${digest?.slice(0, 12)}…). Read it before you start a config that is not yours.`;
}

async function readConfig(absolute: string, file: string, sent: SentFiles | undefined): Promise<string> {
  const text = sent?.texts[file];
  if (text !== undefined && readsAnything()) return text;
  try {
    return await readRegularText(trustedFile(absolute, 'The run file'));
  } catch (cause) {
    if (cause instanceof RatchetError && !(cause instanceof NotAFile)) throw cause;
    const what = whyUnreadable(cause);
    const meant = existsSync(`${absolute}.toml`) ? { suggestion: `did you mean ${file}.toml?` } : {};
    const place = { file, line: null, column: null, path: '' };
    throw new ConfigProblems([{ ...place, expected: 'a TOML file', received: `${what}: ${absolute}`, ...meant }]);
  }
}

/**
 * `preset:NAME` stays; a path becomes absolute, from the config's folder if it begins with a dot. A name on the Hub that is no
 * folder here stays as well, so that whoever refuses it can say what it is.
 */
async function resolveModel(model: string, configFolder: string, projectFolder: string): Promise<string> {
  if (model.startsWith('preset:')) return model;
  const folder = resolvePath(model, configFolder, projectFolder);
  return isHubId(model) && !(await isThere(folder)) ? model : folder;
}

async function isThere(file: string): Promise<boolean> {
  return access(file).then(
    () => true,
    () => false,
  );
}

function resolvePath(written: string, configFolder: string, projectFolder: string): string {
  return path.resolve(written.startsWith('.') ? configFolder : projectFolder, written);
}
