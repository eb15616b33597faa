import { z } from 'zod';
import { layout } from './layout.ts';
import { ChatTemplateSpec, DataRef, type RunSpec } from '../config/run-spec.ts';
import { openRunStore } from '../backends/store/index.ts';
import { damaged } from '../backends/store/objects.ts';
import { decodeStored } from './stored-forms.ts';

const Begun = z.looseObject({
  sft: z.looseObject({ data: DataRef.nullish() }).nullish(),
  data: z.looseObject({ rows: DataRef }).optional(),
  chatTemplate: ChatTemplateSpec.nullish(),
});

/** What a run of this name was begun with, of what lies in the run from then on; null where there is no such run. */
export async function begunWith({
  store,
  name,
}: Pick<RunSpec, 'store' | 'name'>): Promise<{ data: DataRef | null; chatTemplate: ChatTemplateSpec | null } | null> {
  const runStore = openRunStore(store.uri, name);
  const bytes = await runStore.read(layout.run());
  if (bytes === null) return null;
  const read = z.looseObject({ spec: Begun }).safeParse(decodeStored(bytes, runStore.uri + layout.run()));
  if (!read.success)
    throw damaged(runStore.uri + layout.run(), 'expected the settings of a run, found others', read.error);
  const { spec } = read.data;
  return { data: spec.data?.rows ?? spec.sft?.data ?? null, chatTemplate: spec.chatTemplate ?? null };
}
