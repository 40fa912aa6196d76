/* Levels of the search: blocks of states, in memory or in a file. */

static int add_block(Level *level, Block *block) {
  if (level->count == level->room) {
    u64 room = level->room ? 2 * level->room : 4;
    Block **blocks = realloc(level->blocks, room * sizeof *blocks);
    if (!blocks) return -1;
    level->blocks = blocks;
    level->room = room;
  }
  level->blocks[level->count++] = block;
  return 0;
}

static int add_level(Search *s) {
  if (s->depth + 1 >= s->levels_room) {
    u64 room = 2 * s->levels_room + 8;
    Level *levels = realloc(s->levels, room * sizeof *levels);
    if (!levels) return -1;
    s->levels = levels;
    s->levels_room = room;
  }
  memset(&s->levels[++s->depth], 0, sizeof(Level));
  return 0;
}

/* A block for new states, at the end of the last level. Larger levels get larger blocks. */
static Block *new_block(Search *s) {
  Block *b = malloc(sizeof *b);
  u64 room = s->depth ? s->levels[s->depth - 1].states / (4 * (u64)s->threads) : 0;
  room = room < 512 ? 512 : room > 65536 / WORDS ? 65536 / WORDS : room;
  u64 *data = b ? malloc(room * WORDS * sizeof(u64)) : NULL;
  if (!data) {
    free(b);
    return NULL;
  }
  *b = (Block){data, 0, room, -1};
  pthread_mutex_lock(&s->lock);
  int failed = add_block(&s->levels[s->depth], b);
  s->resident += room * WORDS * sizeof(u64);
  const int many = s->resident > s->resident_limit;
  pthread_mutex_unlock(&s->lock);
  if (failed) {
    free(data);
    free(b);
    return NULL;
  }
  if (many) ask_to_stop(s, BLOCKS_ARE_MANY);
  return b;
}

static void drop_data(Search *s, Block *b) {
  if (b->data) s->resident -= b->room * WORDS * sizeof(u64);
  free(b->data);
  b->data = NULL;
}

/* Reads a block back from the file. 0, or -1 with error_number set. */
static int fetch_block(Search *s, Block *b) {
  if (b->data) return 0;
  u64 bytes = b->count * WORDS * sizeof(u64);
  char *data = malloc(bytes);
  if (!data) {
    s->error_number = ENOMEM;
    return -1;
  }
  for (u64 done = 0; done < bytes;) {
    ssize_t n = pread(s->file, data + done, bytes - done, b->offset + (i64)done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      s->error_number = n ? errno : EIO;
      free(data);
      return -1;
    }
    done += (u64)n;
  }
  b->data = (u64 *)data;
  b->room = b->count;
  s->resident += bytes;
  return 0;
}

static int write_block(Search *s, Block *b) {
  if (b->offset >= 0 || b->count == 0) return 0;
  u64 bytes = b->count * WORDS * sizeof(u64);
  for (u64 done = 0; done < bytes;) {
    ssize_t n = pwrite(s->file, (char *)b->data + done, bytes - done, s->file_end + (i64)done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      s->error_number = n ? errno : EIO;
      return -1;
    }
    done += (u64)n;
  }
  b->offset = s->file_end;
  s->file_end += (i64)bytes;
  return 0;
}

/* Ends the blocks that threads were filling; what they do not need is given back. */
static void close_blocks(Search *s) {
  for (int i = 0; i < s->threads; i++) {
    Block *b = s->workers[i].block;
    s->workers[i].block = NULL;
    if (!b || b->count == b->room || !b->data) continue;
    u64 *data = realloc(b->data, (b->count ? b->count : 1) * WORDS * sizeof(u64));
    if (!data) continue;
    s->resident -= (b->room - b->count) * WORDS * sizeof(u64);
    b->data = data;
    b->room = b->count;
  }
}

/* Writes every block that is not in the file yet, level by level. 0, or -1 with error_number set. */
int save(Search *s) {
  close_blocks(s);
  for (u64 d = 0; d <= s->depth; d++)
    for (u64 i = 0; i < s->levels[d].count; i++)
      if (write_block(s, s->levels[d].blocks[i])) return -1;
  return 0;
}

/* Saves, then drops blocks until ``keep`` bytes are left: first those that are needed last. */
int spill(Search *s, u64 keep) {
  if (save(s)) return -1;
  const u64 present = s->depth ? s->depth - 1 : 0;
  for (u64 d = 0; d < present && s->resident > keep; d++)
    for (u64 i = 0; i < s->levels[d].count && s->resident > keep; i++) drop_data(s, s->levels[d].blocks[i]);
  Level *l = &s->levels[present];
  for (u64 i = 0; i < s->at_block && i < l->count && s->resident > keep; i++) drop_data(s, l->blocks[i]);
  l = &s->levels[s->depth];
  for (u64 i = l->count; i > 0 && s->resident > keep; i--) drop_data(s, l->blocks[i - 1]);
  l = &s->levels[present];
  for (u64 i = l->count; i > 0 && s->resident > keep; i--) drop_data(s, l->blocks[i - 1]);
  return 0;
}

