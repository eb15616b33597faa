import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
import { canonical } from '../../core/eval/same-evaluation.ts';
import type { EvaluationInput, EvaluationsInput } from '../../core/eval/evaluation.ts';
import { choosePlace, evaluationsIn, newEvaluationId, placeName } from '../../load/evaluations/evaluation-folders.ts';
import type { PlannedEvaluation } from '../../load/evaluations/load-evaluations.ts';
import type { EvalRunOptions } from './run-options.ts';
import { RatchetError } from '../../core/errors.ts';
import { otherThanAsked } from './same-input.ts';
import { isRunning } from './watch-evaluation.ts';

/** An evaluation that is ready to be given to a workflow. */
interface Prepared {
  readonly workflowId: string;
  readonly summary: string;
  readonly input: EvaluationInput | EvaluationsInput;
  readonly goesOn: boolean;
  /** Whether a workflow that may be at work on it asks other servers than those named now. */
  readonly asksElsewhere: boolean;
}

/** Each evaluation at its place; several under one workflow. */
export async function prepare(
  what: string,
  planned: readonly PlannedEvaluation[],
  around: { readonly options: EvalRunOptions; readonly projectFolder: string; readonly client: Client },
): Promise<Prepared> {
  const { options, projectFolder, client } = around;
  const goOn = options.fresh ? 'never' : options.resume === undefined ? 'interrupted' : 'unfinished';
  const stem = path
    .basename(what, '.toml')
    .replaceAll(/[^\w.-]+/g, '-')
    .slice(0, 100);
  const together = `eval.${stem}${options.fresh ? `.${newEvaluationId()}` : ''}`;
  const inputs: EvaluationInput[] = [];
  let goesOn = false;
  let asksElsewhere = false;
  for (const one of planned) {
    const chosen = await choosePlace(one, {
      projectFolder,
      goOn,
      newId: newEvaluationId(),
      taken: new Set(inputs.map(({ results }) => placeName(results))),
      isHeld: async (holder) => planned.length > 1 && !holder.startsWith(together) && isRunning(client, holder),
    });
    goesOn ||= chosen.goesOn;
    const input = { ...one.input, results: chosen.place };
    asksElsewhere ||= chosen.goesOn && (await hasOtherServers(input));
    inputs.push(input);
  }
  const [first] = inputs as [EvaluationInput];
  if (inputs.length > 1) {
    const title = `${inputs.length} evaluations of ${what}`;
    return { workflowId: together, summary: title, input: { inputs, title }, goesOn, asksElsewhere };
  }
  const { environment, model, results } = first;
  const own = `eval.${environment.name}.${model.model.replaceAll(/[^\w.@-]+/g, '-')}.${results.name}`;
  const holder = await holderOf(first, client);
  return {
    workflowId: holder ?? own,
    summary: `${environment.name} · ${model.model}`,
    input: first,
    goesOn,
    asksElsewhere,
  };
}

/** Whether its newest attempt began with other servers, or other headers for them. */
export async function hasOtherServers({ results, model }: EvaluationInput): Promise<boolean> {
  const found = (await evaluationsIn(fileURLToPath(results.store))).find(({ id }) => id === results.name);
  const before = found?.stored?.input.model;
  if (before?.kind !== 'endpoint' || model.kind !== 'endpoint') return false;
  return canonical(before.servers) !== canonical(model.servers);
}

/** The workflow at work on it, under any name, to attach to. */
async function holderOf({ results }: EvaluationInput, client: Client): Promise<string | null> {
  const folder = fileURLToPath(results.store);
  const found = (await evaluationsIn(folder)).find(({ id }) => id === results.name);
  const holder = found?.stored?.request.split('/', 1)[0];
  return holder !== undefined && (await isRunning(client, holder)) ? holder : null;
}

/** Refuses a running evaluation with the same name but other settings, because its results would pass for the requested ones. */
export async function refuseOtherInput(client: Client, { workflowId, input }: Prepared): Promise<void> {
  const others = await otherThanAsked(client, workflowId, input);
  if (others.length === 0) return;
  throw new RatchetError(
    'ConfigInvalid',
    `The evaluation ${workflowId} is under way with other settings:\n${others.map((line) => `  ${line}`).join('\n')}\nNothing was changed. Type the command again when it has ended, or with --fresh to begin another one now. To end it: npx ratchet-rl temporal workflow cancel --workflow-id ${workflowId}`,
  );
}
