import { existsSync } from 'node:fs';
import path from 'node:path';
import { packagedFolder } from '../../backends/hub/packaged-models.ts';
import type { SamplingSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { describeAdapter, loadModelFolder, type ModelFolder } from '../../engine/index.ts';
import { isModelFolder, namedVersion, openRunVersion, versionFolder } from '../stored/open-version.ts';

/** Subject of a chat: a version of a run, or a folder of weights. */
export interface ChatTarget {
  readonly name: string;
  readonly model: ModelFolder;
  readonly sampling: ChatSampling;
  /** The model before training. */
  openBase(): Promise<ModelFolder>;
}

type ChatSampling = Pick<
  SamplingSpec,
  'temperature' | 'topP' | 'topK' | 'minP' | 'maxTokens' | 'stop' | 'templateArguments'
>;

/** Settings for a folder, which has no run file: small chat models stay coherent at these. */
const defaultSampling: ChatSampling = {
  temperature: 0.5,
  topP: 0.9,
  topK: null,
  minP: 0,
  maxTokens: 256,
  stop: [],
  templateArguments: {},
};

/** `named`: a run, RUN@STEP, a folder of a model or an adapter, or a model that comes as a package. */
export async function openChatTarget(
  named: string,
  { step, store }: { readonly step?: string | undefined; readonly store?: string | undefined },
): Promise<ChatTarget> {
  const folder = folderOf(named);
  if (folder !== null) {
    if (step !== undefined) {
      throw new RatchetError('ConfigInvalid', `--step is of a run; ${named} is a folder, which holds one version.`);
    }
    return {
      name: named,
      model: await loadModelFolder(folder),
      sampling: defaultSampling,
      openBase: () => baseOf(folder),
    };
  }
  const version = namedVersion(named, step);
  return openRunTarget(version.run, { step: version.step, store });
}

function folderOf(named: string): string | null {
  if (isModelFolder(named)) return path.resolve(named);
  const packaged = packagedFolder(named);
  return packaged !== null && existsSync(packaged) ? packaged : null;
}

/** A version of a run, by default the newest. */
export async function openRunTarget(
  run: string,
  options: { readonly step: string | undefined; readonly store: string | undefined },
): Promise<ChatTarget> {
  const { place, step, spec, folder, load } = await openRunVersion(run, options);
  return {
    name: `${run} v${step}`,
    model: await load(folder),
    sampling: spec.sampling,
    openBase: async () => {
      const described = await describeAdapter(folder);
      return load(described?.baseFolder ?? (await versionFolder(place, 0)));
    },
  };
}

async function baseOf(folder: string): Promise<ModelFolder> {
  const described = await describeAdapter(folder);
  if (described) return loadModelFolder(described.baseFolder);
  throw new RatchetError(
    'ConfigInvalid',
    `--compare: expected an adapter's folder, or a run: ${folder} is a whole model, which does not say what it was trained from.`,
  );
}
