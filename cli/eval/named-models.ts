import { specOf } from '../../runs/run-access.ts';
import { namedByModel, serversIn } from '../../backends/configs/grant.ts';
import type { EvaluatedModel } from '../../core/eval/evaluation.ts';

/** Servers and stores that a command names with the models it evaluates; of a run's version those that the run has. */
export async function namedByModels(models: readonly EvaluatedModel[]): Promise<string[]> {
  const named = await Promise.all(
    models.map(async (model) => [
      ...namedByModel(model),
      ...(model.kind === 'version' ? serversIn(await specOf(model.run)) : []),
    ]),
  );
  return named.flat();
}
