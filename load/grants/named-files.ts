import { ConfigProblems, type ReadAs } from '../../config/toml/problems.ts';
import type { RunConfig } from '../../config/run-config.ts';
import { readKept } from '../kept-files.ts';
import type { LoadedConfig, LoadOptions, ReadRunFile } from '../load-run-config.ts';
import { lateRolloutWarnings } from '../late-rollouts.ts';
import { resolveModel } from '../checks/model-of-hub.ts';
import { readAgents } from './agent-files.ts';
import { readCodeOf, readEnvironments, runsCode, withCode } from './named-code.ts';
import { readServers, readTeacher } from './named-servers.ts';
import { readPrompts } from './prompt-files.ts';
import { trying } from '../refused.ts';
import { digestsOf, refuseOthers } from '../sent-files.ts';
import { requireStoreFolder } from '../store-folder.ts';
import { locateVariableFiles, withVariableFiles } from './variable-files.ts';

/** Adds the files that a run file names, with their digests. */
export async function withFiles(
  parsed: RunConfig & { readonly readAs: ReadAs },
  {
    folder,
    texts,
    ownPrompts,
  }: { readonly folder: string; readonly ownPrompts: ReadonlySet<string> } & Pick<ReadRunFile, 'texts'>,
  { projectFolder, reachesStore = false, isOnlyLookedAt = false, sent }: LoadOptions,
): Promise<LoadedConfig> {
  const { spec, readAs, resumeStep, missing, advice, placeOf } = parsed;
  const folders = { folder, projectFolder };
  const { tried, problems } = trying(placeOf);
  await tried([['store', 'uri'], ['output_dir']], () => requireStoreFolder(spec.store.uri));
  const code = await readCodeOf(spec, folder, tried);
  const prompts = await readPrompts(spec, folders, { tried, ownPrompts, sent });
  const agents = await readAgents(prompts, folders, tried);
  const environments = await readEnvironments(agents, folder, tried);
  const places = { folders: [folder, projectFolder], areAllHere: missing.length === 0 };
  const variables = await locateVariableFiles(spec, places, (look) => tried([['env_files']], look));
  const mayLook = reachesStore || spec.store.uri.startsWith('file:');
  const inference = await readServers(spec.inference, folders, tried);
  const teacher = await readTeacher(spec.teacher, folders, tried);
  const named = await resolveModel(spec, folders);
  const { data, template } = await readKept(spec, { folders, mayLook }, tried);
  if (problems.size > 0 && !isOnlyLookedAt) throw new ConfigProblems([...problems.values()], readAs);
  const refs = [...Object.values(code), ...environments.files, ...agents.functions];
  const beside = digestsOf(folder, [
    ...refs,
    ...prompts.files,
    ...agents.files,
    data?.found ?? null,
    template?.found ?? null,
  ]);
  if (sent) refuseOthers(beside, sent, folder);
  return {
    spec: {
      ...spec,
      environments: withVariableFiles(environments.trained, variables),
      eval: spec.eval && { ...spec.eval, environments: withVariableFiles(environments.evaluated, variables) },
      sft: spec.sft && { ...spec.sft, data: data?.ref ?? spec.sft.data },
      ...(spec.data ? { data: { ...spec.data, rows: data?.ref ?? spec.data.rows } } : {}),
      chatTemplate: template?.ref ?? null,
      loss: { ...spec.loss, import: code.loss },
      advantage: code.advantage === null ? spec.advantage : { import: code.advantage },
      trainer: withCode(named.trainer, code.trainer),
      inference: withCode(inference, code.inference),
      teacher,
      model: named.model,
    },
    resumeStep,
    readAs,
    missing,
    advice,
    placeOf,
    sent: { texts: { ...texts, ...prompts.texts }, beside },
    problems: [...problems.values()],
    sftRows: data?.rows ?? null,
    chatTemplate: template?.text ?? null,
    warnings: [
      ...parsed.warnings,
      ...[data, template].flatMap((kept) => kept?.warning ?? []),
      ...variables.warnings,
      ...agents.warnings,
      ...lateRolloutWarnings(spec, environments.trained),
      ...refs.filter((ref) => ref !== null).map(runsCode),
    ],
  };
}
