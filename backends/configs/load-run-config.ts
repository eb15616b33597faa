import { existsSync } from 'node:fs';
import { readFile, realpath } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { layout } from '../../core/layout.ts';
import { isEnvironmentFile } from '../../core/names.ts';
import {
  formatProblems,
  type MissingEnvironment,
  parseRunConfig,
  type ReadAs,
} from '../../core/spec/parse-run-config.ts';
import { type CodeRef, DataRef, type RunSpec } from '../../core/spec/run-spec.ts';
import { environmentFinder } from '../environments/find.ts';
import { sha256 } from '../store/file-store.ts';
import { openRunStore, resolveStoreUri } from '../store/index.ts';
import { decodeJson } from '../store/objects.ts';
import { readSftData } from './sft-data.ts';

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
  /** Only to be looked at: environments that are not here are no error. */
  readonly isOnlyLookedAt?: boolean;
}

export interface LoadedConfig {
  readonly spec: RunSpec;
  readonly warnings: readonly string[];
  readonly readAs: ReadAs;
  /** Environments that are not here; none unless the file is only looked at. */
  readonly missing: readonly MissingEnvironment[];
  /** The step to go on from, where the config asks for one: −1 = the latest. */
  readonly resumeStep: number | null;
  /** The rows of `[sft] data` as a run stores them; null where there are none, or the run that is there has its own. */
  readonly sftRows: Uint8Array | null;
}

/** A TOML file as a run spec with every path made absolute. Throws `ConfigInvalid` naming all problems at once. */
export async function loadRunConfig(
  file: string,
  { projectFolder, overrides = {}, run, dialect, over = [], reachesStore = false, isOnlyLookedAt = false }: LoadOptions,
): Promise<LoadedConfig> {
  const absolute = path.resolve(projectFolder, file);
  const text = await readConfig(absolute, file);
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
        text: await readConfig(path.resolve(projectFolder, layer.file), layer.file),
      })),
    ),
  });
  if (!parsed.ok) throw new RatchetError('ConfigInvalid', formatProblems(parsed.problems));
  const { spec, warnings, resumeStep, readAs, missing } = parsed;
  const folder = path.dirname(absolute);
  const code = {
    loss: spec.loss.import && (await readCode(spec.loss.import, folder, 'trainer.loss.import')),
    advantage:
      typeof spec.advantage === 'string'
        ? null
        : await readCode(spec.advantage.import, folder, 'trainer.advantage.import'),
    trainer: spec.trainer.kind === 'module' ? await readCode(spec.trainer.import, folder, 'trainer.import') : null,
    inference:
      spec.inference.kind === 'module' ? await readCode(spec.inference.import, folder, 'inference.import') : null,
  };
  const environments = await Promise.all(spec.environments.map((entry, i) => withFile(entry, folder, `env.${i}.id`)));
  const evaluated = await Promise.all(
    (spec.eval?.environments ?? []).map((entry, i) => withFile(entry, folder, `eval.env.${i}.id`)),
  );
  const files = [...environments, ...evaluated].flatMap(({ id, sha256 }) =>
    sha256 === undefined ? [] : { path: id, sha256 },
  );
  const once = new Map(files.map((file) => [file.path, file]));
  const store = { uri: resolveStoreUri(spec.store.uri, projectFolder) };
  const data = await readData({ ...spec, store }, { folder, projectFolder, reachesStore });
  return {
    spec: {
      ...spec,
      environments,
      eval: spec.eval && { ...spec.eval, environments: evaluated },
      sft: spec.sft && { ...spec.sft, data: data?.ref ?? null },
      loss: { ...spec.loss, import: code.loss },
      advantage: code.advantage === null ? spec.advantage : { import: code.advantage },
      trainer: withCode(spec.trainer, code.trainer),
      inference: withCode(spec.inference, code.inference),
      model: resolveModel(spec.model, path.dirname(absolute), projectFolder),
      store,
    },
    resumeStep,
    readAs,
    missing,
    sftRows: data?.rows ?? null,
    warnings: [
      ...warnings,
      ...(data?.warning === undefined ? [] : [data.warning]),
      ...[...Object.values(code).filter((ref) => ref !== null), ...once.values()].map(runsCode),
    ],
  };
}

interface LoadedData {
  readonly ref: DataRef;
  readonly rows: Uint8Array | null;
  readonly warning?: string;
}

/** `[sft] data`: as it is now, or, where the run has begun with other rows, those. */
async function readData(
  spec: RunSpec,
  {
    folder,
    projectFolder,
    reachesStore,
  }: Required<Pick<LoadOptions, 'projectFolder' | 'reachesStore'>> & { folder: string },
): Promise<LoadedData | null> {
  const written = spec.sft?.data?.path;
  if (written === undefined) return null;
  const file = resolvePath(written, folder, projectFolder);
  const begun = reachesStore || spec.store.uri.startsWith('file:') ? await dataBegunWith(spec) : null;
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
  return { ref: begun ?? { path: file, sha256: digest }, rows: found.bytes };
}

const Begun = z.looseObject({ spec: z.looseObject({ sft: z.looseObject({ data: DataRef.nullish() }).nullish() }) });

async function dataBegunWith({ store, name }: RunSpec): Promise<DataRef | null> {
  const recorded = await openRunStore(store.uri, name).read(layout.run());
  return (recorded && Begun.parse(decodeJson(recorded, layout.run())).spec.sft?.data) ?? null;
}

function withCode<Spec extends { readonly kind: string }>(spec: Spec, code: CodeRef | null): Spec {
  return code === null ? spec : { ...spec, import: code };
}

/** An environment that is a file: where it is, and what is in it now. */
async function withFile<Entry extends { readonly id: string }>(
  entry: Entry,
  folder: string,
  key: string,
): Promise<Entry & { readonly sha256?: string }> {
  if (!isEnvironmentFile(entry.id)) return entry;
  const { path: id, sha256 } = await readCode({ path: entry.id, sha256: null }, folder, key);
  return { ...entry, id, ...(sha256 === null ? {} : { sha256 }) };
}

/** Looks at a file of the user's code without running it. A relative path stays in the config's folder, also through links. */
async function readCode({ path: written }: CodeRef, folder: string, key: string): Promise<CodeRef> {
  const absolute = path.resolve(folder, written);
  const refuse = (received: string): RatchetError =>
    new RatchetError(
      'ConfigInvalid',
      `${key}: expected a file with code beside or below the config, or an absolute path; ${received}.`,
    );
  const isInside = path.isAbsolute(written) || isBelow(folder, absolute);
  if (!isInside) throw refuse(`${JSON.stringify(written)} leads out of ${folder}`);
  try {
    if (!path.isAbsolute(written) && !isBelow(await realpath(folder), await realpath(absolute))) {
      throw refuse(`${JSON.stringify(written)} is a link that leads out of ${folder}`);
    }
    return { path: absolute, sha256: sha256(await readFile(absolute)) };
  } catch (cause) {
    if (cause instanceof RatchetError) throw cause;
    throw refuse(`${absolute} cannot be read (${(cause as NodeJS.ErrnoException).code})`);
  }
}

function isBelow(folder: string, file: string): boolean {
  const way = path.relative(folder, file);
  return way !== '..' && !way.startsWith(`..${path.sep}`) && !path.isAbsolute(way);
}

function runsCode({ path: file, sha256: digest }: CodeRef): string {
  return `this run executes code of its own: ${file} (sha256 ${digest?.slice(0, 12)}…). Read it before you start a config that is not yours.`;
}

async function readConfig(absolute: string, file: string): Promise<string> {
  try {
    return await readFile(absolute, 'utf8');
  } catch (cause) {
    const reason = (cause as NodeJS.ErrnoException).code;
    const what =
      reason === 'ENOENT'
        ? 'there is no such file'
        : reason === 'EISDIR'
          ? 'that is a folder'
          : `it cannot be read (${reason})`;
    const meant = existsSync(`${absolute}.toml`) ? ` Did you mean ${file}.toml?` : '';
    throw new RatchetError('ConfigInvalid', `${file}: expected a TOML file, but ${what}: ${absolute}.${meant}`, {
      cause,
    });
  }
}

/** `preset:NAME` stays; a path becomes absolute, from the config's folder if it begins with a dot. */
function resolveModel(model: string, configFolder: string, projectFolder: string): string {
  return model.startsWith('preset:') ? model : resolvePath(model, configFolder, projectFolder);
}

function resolvePath(written: string, configFolder: string, projectFolder: string): string {
  return path.resolve(written.startsWith('.') ? configFolder : projectFolder, written);
}
