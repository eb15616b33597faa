import { layout } from '../../runs/layout.ts';
import { ProtobufWriter } from '../../engine/onnx/protobuf.ts';
import type { Store } from '../../store/types.ts';
import type { MetricsRow, MetricsSink, NumberedRow } from '../../core/rl/metric-rows.ts';
import { maskedCrc32c } from './crc32c.ts';
import { timeOf } from '../../backends/metrics/sinks.ts';

/**
 * Event files of TensorBoard, `tensorboard/<lineage>/events.out.tfevents.…`, one event for each row of metrics. Each
 * lineage is a TensorBoard run, whose steps must increase. A record is length (u64), its masked CRC-32C, the event, its
 * masked CRC-32C (tensorflow/core/lib/io/record_writer.cc); the event is tensorflow/core/util/event.proto.
 *
 * The files record their own progress: every event has the number of its row, in `source_metadata.writer`. A record
 * torn by a crash ends its file; the next row begins another.
 */
export class TensorBoardSink implements MetricsSink {
  readonly name = 'tensorboard';
  readonly #store: Store;
  /** The file being written, by lineage; null: a new one is begun. */
  readonly #files = new Map<string, string | null>();
  readonly #parts = new Map<string, number>();

  constructor(store: Store) {
    this.#store = store;
  }

  async open(): Promise<number> {
    let next = 0;
    this.#files.clear();
    this.#parts.clear();
    for (const key of await this.#store.list('tensorboard/')) {
      const lineage = key.split('/')[1]!;
      const bytes = (await this.#store.read(key)) ?? new Uint8Array();
      const { records, isWhole } = readRecords(bytes);
      for (const record of records) next = Math.max(next, (rowNumberOf(record) ?? -1) + 1);
      this.#files.set(lineage, isWhole && records.length > 0 ? key : null);
      this.#parts.set(lineage, (this.#parts.get(lineage) ?? 0) + 1);
    }
    return next;
  }

  async send(rows: readonly NumberedRow[]): Promise<void> {
    for (const lineage of new Set(rows.map(({ row }) => row.lineage))) {
      const own = rows.filter(({ row }) => row.lineage === lineage);
      const known = this.#files.get(lineage);
      const key = known ?? this.#newFile(lineage, own[0]!.row);
      const records = [
        ...(known ? [] : [recordOf(versionEvent(own[0]!.row))]),
        ...own.map((row) => recordOf(eventOf(row))),
      ];
      this.#files.set(lineage, null); // if the append tears, the next row begins another file
      await this.#store.append(key, Buffer.concat(records));
      this.#files.set(lineage, key);
    }
  }

  place(): string {
    return `${this.#store.uri.replace(/[?].*/, '')}tensorboard/`;
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  #newFile(lineage: string, first: MetricsRow): string {
    const part = this.#parts.get(lineage) ?? 0;
    this.#parts.set(lineage, part + 1);
    return layout.eventFile(lineage, Math.floor(timeOf(first) / 1000), part);
  }
}

function versionEvent(row: MetricsRow): ProtobufWriter {
  return new ProtobufWriter().double(1, timeOf(row) / 1000).string(3, 'brain.Event:2');
}

const writerPrefix = 'ratchet row ';

function eventOf({ number, row }: NumberedRow): ProtobufWriter {
  const summary = new ProtobufWriter();
  for (const [tag, value] of Object.entries(row)) {
    if (typeof value !== 'number' || tag === 'step') continue;
    summary.message(1, new ProtobufWriter().string(1, tag).float(2, value));
  }
  return new ProtobufWriter()
    .double(1, timeOf(row) / 1000)
    .int(2, row.step)
    .message(5, summary)
    .message(10, new ProtobufWriter().string(1, `${writerPrefix}${number}`));
}

function recordOf(event: ProtobufWriter): Buffer {
  const data = event.finish();
  const record = Buffer.alloc(12 + data.length + 4);
  record.writeBigUInt64LE(BigInt(data.length), 0);
  record.writeUInt32LE(maskedCrc32c(record.subarray(0, 8)), 8);
  record.set(data, 12);
  record.writeUInt32LE(maskedCrc32c(data), 12 + data.length);
  return record;
}

/** Complete records at the beginning of an event file, and whether the file has nothing else. */
export function readRecords(bytes: Uint8Array): { readonly records: readonly Buffer[]; readonly isWhole: boolean } {
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const records: Buffer[] = [];
  let at = 0;
  while (at + 12 <= file.length) {
    const length = Number(file.readBigUInt64LE(at));
    const isSound = file.readUInt32LE(at + 8) === maskedCrc32c(file.subarray(at, at + 8));
    if (!isSound || at + 16 + length > file.length) break;
    const data = file.subarray(at + 12, at + 12 + length);
    if (file.readUInt32LE(at + 12 + length) !== maskedCrc32c(data)) break;
    records.push(data);
    at += 16 + length;
  }
  return { records, isWhole: at === file.length };
}

/** Row number of an event: its last field, and the only text in it with this prefix. */
export function rowNumberOf(event: Buffer): number | null {
  const at = event.lastIndexOf(writerPrefix);
  return at < 0 ? null : Number(event.subarray(at + writerPrefix.length).toString('utf8'));
}
