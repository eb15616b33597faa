import { onOneLine } from '../output/plain-text.ts';
import type { PlannedEvaluation } from '../../load/evaluations/load-evaluations.ts';

/** Lines of `--dry-run`. */
export function describePlan(planned: readonly PlannedEvaluation[]): string[] {
  return planned.flatMap(({ input }) => {
    const { environment, model, numExamples, rolloutsPerExample, maxConcurrent, shuffleSeed } = input;
    const examples = numExamples < 0 ? 'all examples' : `${numExamples} examples`;
    const asked =
      model.kind === 'endpoint'
        ? model.servers.map(({ baseUrl, apiKeyVar }) => `${baseUrl}${apiKeyVar === null ? '' : ` (key: ${apiKeyVar})`}`)
        : ['the servers of its run'];
    return [
      `${environment.name} with ${model.model}: ${examples} × ${rolloutsPerExample} rollouts, ${maxConcurrent < 0 ? 'all' : maxConcurrent} at once${shuffleSeed === null ? '' : `, shuffled by ${shuffleSeed}`}`,
      `  asked at ${asked.join(', ') || 'a server that is started for it'}`,
      ...(Object.keys(environment.args).length === 0 ? [] : [`  env_args ${JSON.stringify(environment.args)}`]),
      ...(environment.systemPrompt === undefined
        ? []
        : [`  system_prompt ${onOneLine(JSON.stringify(environment.systemPrompt))}`]),
      ...(Object.keys(model.sampling).length === 0 ? [] : [`  sampling ${JSON.stringify(model.sampling)}`]),
    ];
  });
}
